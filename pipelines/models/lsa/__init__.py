"""Latent semantic analysis beside an encoder: numbers of an embedding that depend on words only.

An encoder trained on general text confuses the words of a field that it seldom saw. The corpus adds
numbers after the encoder's own. Each token has a direction, by the other tokens of its documents. A
text has the mean of its tokens' directions, weighted by rareness.
"""

LIMIT = (
    "Only sentence-transformers (5.4 or later) and sentence-pipelines compute its embeddings. "
    "vLLM, Text Embeddings Inference, infinity, fastembed and AutoModel refuse the folder, since "
    "they know no lexical (LSA) features. `sentence-pipelines export` puts them into an ONNX file."
)
"""The description of a model with terms, wherever it is shown."""
