"""Latent semantic analysis beside an encoder: numbers of an embedding that depend on words only.

An encoder trained on general text confuses the words of a field that it seldom saw. The corpus adds
numbers after the encoder's own. Each token has a direction, by the other tokens of its documents. A
text has the mean of its tokens' directions, weighted by rareness.
"""

LIMIT = (
    "Only sentence-transformers (5.4 or later) and sentence-pipelines compute its embeddings. "
    "vLLM, Text Embeddings Inference, fastembed, AutoModel and exports to ONNX know nothing of its "
    "lexical (LSA) features: they refuse the folder, or leave the features out."
)
"""The description of a model with terms, wherever it is shown."""
