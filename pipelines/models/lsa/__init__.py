"""Latent semantic analysis beside an encoder: numbers of an embedding that words alone decide.

An encoder that was trained on general text confuses the words of a field that it seldom saw. What
its documents say of them is added behind the encoder's own numbers: each token has a direction, by
which other tokens it stands in documents with, and a text the mean of its tokens' directions,
weighted by how rare they are.
"""

LIMIT = (
    "Only sentence-transformers (5.4 or later) and sentence-pipelines compute its embeddings. "
    "vLLM, Text Embeddings Inference, fastembed, AutoModel and exports to ONNX know nothing of its "
    "lexical (LSA) features: they refuse the folder, or leave the features out."
)
"""What is said of a model with terms, wherever it is shown."""
