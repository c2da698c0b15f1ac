"""BERT in BigDL's dllib; see :class:`pipelines.engines.bigdl.form.Form`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.engines.bigdl.form import POOLED, Builder
from pipelines.models.bert.spec import POSITIONS, PROJECTION, SEGMENTS, BertSpec, layer_prefix
from pipelines.models.weights import WORDS
from pipelines.quiet import quiet_import


def token_floats(spec: BertSpec, tokens: int) -> int:
    """Return the count of fp32 numbers per token that forward and backward keep.

    They are the outputs of each layer's parts, with the attention probabilities; two sets of
    gradients, which the layers use in turn; and the gradients of the embeddings. `tokens` is the
    length of the longest text.
    """
    outputs = spec.layers * (10 * spec.hidden + 3 * spec.intermediate + spec.heads * tokens)
    gradients = 2 * (10 * spec.hidden + 2 * spec.intermediate)
    return outputs + gradients + 6 * spec.hidden


with quiet_import():
    from bigdl.dllib.nn import layer as dllib


def encode(spec: BertSpec, builder: Builder, ids: Any) -> Any:
    """Return the pooled hidden states of each text."""
    return _Graph(spec, builder).embeddings(ids)


class _Graph:
    """BERT's part of a graph, and the gradient arrays that its layers share."""

    def __init__(self, spec: BertSpec, builder: Builder) -> None:
        self._spec = spec
        self._builder = builder
        # Two sets in turn: a layer's gradients are needed until the layer below has its own. So two
        # are enough for any number of layers, while dllib gives every layer its own.
        self._gradients = (builder.classes.Gradients(), builder.classes.Gradients())

    def embeddings(self, ids: Any) -> Any:
        """Return [texts, hidden]."""
        hidden_states = self._embedding_output(ids)
        for number in range(self._spec.layers):
            hidden_states = self._layer(hidden_states, number)
        return self._builder.pool(hidden_states, POOLED[self._spec.pooling], self._spec.hidden)

    def _embedding_output(self, ids: Any) -> Any:
        """Return the normalised sum of words, positions and segment, [tokens, hidden]."""
        spec = self._spec
        tables = {WORDS: spec.vocabulary, POSITIONS: spec.positions}
        if spec.type_vocabulary:
            tables[SEGMENTS] = spec.type_vocabulary
        width = spec.word_width
        vectors = self._builder.token_vectors(ids, tables, width)
        gradients = self._builder.classes.Gradients()
        states = self._norm(
            vectors, "embeddings.", gradients.norm(0, 0), gradients.norm(0, 1), width
        )
        if not spec.projects:
            return states
        return self._dense(dllib.Linear(width, spec.hidden), states, [PROJECTION])

    def _layer(self, hidden_states: Any, number: int) -> Any:
        """Apply attention, then the feed-forward block, each with a residual connection."""
        spec, builder, prefix = self._spec, self._builder, layer_prefix(number)
        gradients = self._gradients[number % 2]
        products = [dllib.Linear(*sizes) for sizes in _product_sizes(spec)]
        for place, product in enumerate(products):
            gradients.give(product.value, place)
        qkv, attention_output, intermediate, output = products

        parts = [f"{prefix}attention.self.{name}" for name in ("query", "key", "value")]
        joined = self._dense(qkv, hidden_states, parts)
        attention = builder.classes.Attention(spec.hidden, spec.heads, gradients.attention())
        context = builder.add_own(attention, [joined, builder.lengths])
        update = self._dense(attention_output, context, [f"{prefix}attention.output.dense"])
        hidden_states = self._norm(
            [hidden_states, update],
            f"{prefix}attention.output.",
            gradients.norm(0, 0),
            gradients.norm(0, 1),
        )

        wide = self._dense(intermediate, hidden_states, [f"{prefix}intermediate.dense"])
        activated = builder.add_own(builder.classes.Gelu(gradients.gelu()), wide)
        update = self._dense(output, activated, [f"{prefix}output.dense"])
        return self._norm(
            [hidden_states, update], f"{prefix}output.", gradients.norm(1, 0), gradients.norm(1, 1)
        )

    def _dense(self, product: Any, inputs: Any, names: Sequence[str]) -> Any:
        """Multiply with the named weights, stacked to one matrix."""
        groups = tuple(tuple(f"{name}.{part}" for name in names) for part in ("weight", "bias"))
        return self._builder.add(product, inputs, groups)

    def _norm(
        self,
        inputs: Any,
        prefix: str,
        gradient: Any,
        residual_gradient: Any,
        width: int | None = None,
    ) -> Any:
        """Apply layer norm to an input, or the sum of two, by default of the layers' width."""
        layer = self._builder.classes.ResidualNorm(
            width or self._spec.hidden, self._spec.layer_norm_epsilon, gradient, residual_gradient
        )
        groups = ((f"{prefix}LayerNorm.weight",), (f"{prefix}LayerNorm.bias",))
        return self._builder.add_own(layer, inputs, groups)


def _product_sizes(spec: BertSpec) -> list[tuple[int, int]]:
    """Return input and output widths of a layer's matrix products."""
    hidden, inner = spec.hidden, spec.intermediate
    return [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]
