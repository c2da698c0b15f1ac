"""What a static encoder keeps of a token in a JVM; needs nothing of BigDL."""

from __future__ import annotations

from pipelines.models.static.spec import StaticSpec


def token_floats(spec: StaticSpec, tokens: int) -> int:
    """fp32 numbers that forward and backward keep of a token, amply: vectors and gradients.

    Args:
        spec: The shape.
        tokens: Of the longest text, which does not count.
    """
    return 26 * spec.hidden
