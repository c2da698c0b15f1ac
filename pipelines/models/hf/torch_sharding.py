"""Encoders of `transformers` as modules: each layer of the library's model is gathered on its own.

The library runs its layers itself, one after the other, so all sides of a granule are one batch: a
layer that computed one side after the other would have its whole gradient kept until the last.
What stands in the padding has no influence, but noise has: with dropout, and for models with
weights that no embedding depends on, the encoder is gathered at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from pipelines.models.adaptation import layer_of
from pipelines.models.frameworks.torch import PRECISIONS
from pipelines.models.frameworks.torch_batch import pool
from pipelines.models.frameworks.torch_division import Members
from pipelines.models.frameworks.torch_sharding import EncoderModule, Inputs, WholeModule
from pipelines.models.hf.spec import HfSpec
from pipelines.models.hf.torch import empty_on, rectangle
from pipelines.models.hf.torch_library import UNUSED, own_names
from pipelines.settings import TrainingSettings


def hf_module(
    spec: HfSpec, training: TrainingSettings, members: Members | None = None
) -> EncoderModule:
    """The module of a model of the library; see :func:`.torch_sharding.encoder_module`.

    Args:
        spec: The shape.
        training: Precision, dropout, and whether activations are checkpointed.
        members: That hold the model together, of which this worker has its part.
    """
    # It has no memory for its weights, wherever it is.
    model = empty_on(spec.config, 0.0, torch.device("cpu"), members)
    has_unused = any(name.startswith(UNUSED) for name, _ in model.named_parameters())
    if spec.dropout(training.dropout) is not None or has_unused:
        assert members is None, "refused before the start"
        return WholeModule(spec, training)
    return HfModule(spec, model, training)


class HfModule(EncoderModule):
    """A model of the library, gathered layer by layer; what is in no layer stays.

    Args:
        spec: The shape.
        model: The library's, whose parameters have no memory.
        training: Precision of the matrix products, and whether activations are checkpointed.
    """

    def __init__(self, spec: HfSpec, model: Any, training: TrainingSettings) -> None:
        super().__init__(spec)
        self._spec = spec
        self._dtype = PRECISIONS[training.precision]
        self._names = own_names(model)
        self._layers = list(dict.fromkeys(filter(None, map(_layer_path, self._names.values()))))
        self.model = model
        # Nothing is dropped: there is no difference but for what the library computes again.
        model.eval()
        if training.activation_checkpointing:
            for layer in self.own_units():
                # Within the hooks of those who split parameters, which the library's own is not.
                layer.forward = partial(_checkpointed, layer.forward)

    def own_units(self) -> Iterator[torch.nn.Module]:
        """The layers."""
        for path in self._layers:
            yield self.model.get_submodule(path)

    @property
    def own_weights(self) -> dict[str, torch.Tensor]:
        """The parameters of the library's model, in canonical names."""
        found = dict(self.model.named_parameters())
        return {canonical: found[name] for canonical, name in self._names.items()}

    def encode(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [texts, hidden] of each side, before dense layers."""
        width = max(side.batch.width for side in sides)
        ids, masks = [], []
        for side in sides:
            of_side, mask = rectangle(side.batch, self._spec.pad_token_id)
            missing = (0, width - side.batch.width)
            ids.append(pad(of_side, missing, value=self._spec.pad_token_id))
            masks.append(pad(mask, missing))
        with torch.autocast(ids[0].device.type, self._dtype, enabled=self._dtype != torch.float32):
            output = self.model(input_ids=torch.cat(ids), attention_mask=torch.cat(masks))
        states = output.last_hidden_state.float().split([side.batch.texts for side in sides])
        return [
            pool(self._spec.pooling, side.batch.tokens(own[:, : side.batch.width]), side.batch)
            for own, side in zip(states, sides, strict=True)
        ]


def _layer_path(name: str) -> str | None:
    """The path of the layer that a weight is of; None for one outside of the layers."""
    number = layer_of(name)
    if number is None:
        return None
    before, found, _ = name.partition(f".{number}.")
    return before + found.removesuffix(".")


def _checkpointed(forward: Any, *inputs: Any, **named: Any) -> Any:
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **named)
