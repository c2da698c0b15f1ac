"""What BERT's layers keep of a token in a JVM; needs nothing of BigDL."""

from __future__ import annotations

from pipelines.models.bert.spec import BertSpec


def token_floats(spec: BertSpec, tokens: int) -> int:
    """fp32 numbers that forward and backward keep of a token.

    What the parts of each layer give, the shares of attention among it; the gradients of two
    layers, which all layers use in turn; and those of the embeddings.

    Args:
        spec: The shape.
        tokens: Of the longest text.
    """
    outputs = spec.layers * (10 * spec.hidden + 3 * spec.intermediate + spec.heads * tokens)
    gradients = 2 * (10 * spec.hidden + 2 * spec.intermediate)
    return outputs + gradients + 6 * spec.hidden
