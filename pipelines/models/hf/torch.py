"""Encoders of `transformers` in PyTorch, as functions and as modules gathered by layer.

See :class:`pipelines.models.frameworks.torch.Form`. As modules, each layer of the library's model
is gathered alone. The library runs its layers itself, so all sides of a granule are one batch: side
after side, a layer's whole gradient would be kept until the last.

With dropout the encoder is gathered at once, since padding has no influence, but noise has. So are
models with weights unused by embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from pipelines.errors import InputError
from pipelines.models.adaptation import layer_of
from pipelines.models.frameworks.torch import PRECISIONS, Encode, linear
from pipelines.models.frameworks.torch_batch import Batch, pool
from pipelines.models.frameworks.torch_division import ALONE, WHOLE, Members, Part
from pipelines.models.frameworks.torch_dropout import DropoutMasks
from pipelines.models.frameworks.torch_module import EncoderModule, Inputs, WholeModule
from pipelines.models.hf.architecture import HfSpec
from pipelines.models.hf.torch_library import UNUSED, divide, empty_model, own_names
from pipelines.settings import TrainingSettings


class HfEncoder(Encode):
    """Forward passes of a model, or of a part of it; see :class:`.Encode`.

    ``torch.autocast`` does the casts. Dropout is the library's, from PyTorch's generator; each
    forward pass seeds the generator and restores it afterwards.
    """

    def __init__(
        self,
        spec: HfSpec,
        weights: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        part: Part = WHOLE,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._dtype = dtype
        self._members = part.members

    def hidden_states(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """Return fp32 [tokens, hidden]."""
        share = 0.0 if masks is None else None if masks.rates.own else masks.rates.hidden
        device = batch.token_ids.device
        model = _model(self._spec.config, share, activation_checkpointing, device, self._members)
        # Only lookups that the library leaves to PyTorch's own layer can be sparse.
        model.words.sparse = sparse_words
        ids, attention_mask = rectangle(batch, self._spec.pad_token_id)
        with (
            # Which layers are left out (LayerDrop) is drawn on the CPU.
            nullcontext() if masks is None else masks.seeded(0, host=True),
            model.holding(self._weights),
            torch.autocast(device.type, self._dtype, enabled=self._dtype != torch.float32),
        ):
            output = model.module(input_ids=ids, attention_mask=attention_mask)
        hidden_states: torch.Tensor = batch.tokens(output.last_hidden_state.float())
        return hidden_states

    def pooled(self, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return fp32 [texts, hidden]."""
        return pool(self._spec.pooling, hidden_states, batch)


class _Linear(torch.nn.Linear):  # type: ignore[misc]
    """The library's layer, by :func:`pipelines.models.frameworks.torch.linear`."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return linear(states, self.weight, self.bias)


def empty_on(
    config: str, dropout: float | None, device: torch.device, members: Members = ALONE
) -> Any:
    """Return a model with this package's linear layers, without memory for its weights.

    ``config`` is the text of a config.json; a dropout of None is its own. The device is that of
    buffers. With several members the model is this one's part.
    """
    model = empty_model(config, dropout)
    if members.size > 1:
        divide(model, config, members)
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = _Linear
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)
    return model


class _Model:
    """A model of the library without weights, and its word embedding; see :func:`empty_on`."""

    def __init__(
        self,
        config: str,
        dropout: float | None,
        *,
        checkpointed: bool,
        device: torch.device,
        members: Members,
    ) -> None:
        # Models are cached: embedding may build this one, and training use its buffers later.
        with torch.inference_mode(False):
            self.module = empty_on(config, dropout, device, members)
        self.words = self.module.get_input_embeddings()
        self._held: Mapping[str, torch.Tensor] | None = None
        self._names = own_names(self.module)
        self._places = {
            name: (self.module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])
            for name, _ in self.module.named_parameters()
        }
        # The library drops, and computes layers once more, in training only.
        self.module.train(dropout != 0 or checkpointed)
        if checkpointed:
            self._checkpoint_layers()

    @contextmanager
    def holding(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Lend the model its weights, as ``functional_call`` does.

        That function does not suffice: recomputed layers run long after it has returned.
        """
        if self._held is weights:
            yield
            return
        before = {name: owner._parameters[leaf] for name, (owner, leaf) in self._places.items()}
        held, self._held = self._held, weights
        try:
            device = next(iter(weights.values())).device
            for name, parameter in before.items():
                if name.startswith(UNUSED):
                    self._put(name, torch.zeros(parameter.shape, device=device))
            for canonical, name in self._names.items():
                self._put(name, weights[canonical])
            yield
        finally:
            self._held = held
            for name, parameter in before.items():
                self._put(name, parameter)

    def _put(self, name: str, value: torch.Tensor) -> None:
        owner, leaf = self._places[name]
        # A tensor that is no Parameter is refused by setattr.
        owner._parameters[leaf] = value

    def _checkpoint_layers(self) -> None:
        try:
            self.module._set_gradient_checkpointing(
                enable=True, gradient_checkpointing_func=self._run_checkpointed
            )
        except ValueError:
            raise InputError(
                "training.activation_checkpointing",
                f"{type(self.module).__name__} of transformers keeps all activations",
                "Leave it out",
            ) from None

    def _run_checkpointed(self, layer: Callable[..., Any], *inputs: Any) -> Any:
        """Run a layer; its gradient runs it once more, with these weights and this noise."""
        weights = self._held
        assert weights is not None, "layers run while weights are held"

        def run(*inputs: Any) -> Any:
            with self.holding(weights):
                return layer(*inputs)

        return checkpoint(run, *inputs, use_reentrant=False)


@lru_cache(maxsize=4)
def _model(
    config: str,
    dropout: float | None,
    checkpointed: bool,
    device: torch.device,
    members: Members,
) -> _Model:
    """Return a cached model: building one takes longer than a small batch."""
    return _Model(config, dropout, checkpointed=checkpointed, device=device, members=members)


def rectangle(batch: Batch, padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and the mask of tokens, int64 [texts, width], padded on the right."""
    count = len(batch.token_ids)
    ones = torch.ones(count, 1, dtype=torch.int64, device=batch.token_ids.device)
    attention_mask = batch.rectangle(ones)[:, :, 0]
    ids = batch.rectangle(batch.token_ids[:, None])[:, :, 0]
    return ids + padding * (1 - attention_mask), attention_mask


def hf_module(spec: HfSpec, training: TrainingSettings, members: Members) -> EncoderModule:
    """Return the module of a model of the library; see :func:`.encoder_module`."""
    # It has no memory for its weights, wherever it is.
    model = empty_on(spec.config, 0.0, torch.device("cpu"), members)
    has_unused = any(name.startswith(UNUSED) for name, _ in model.named_parameters())
    if spec.dropout(training.dropout) is not None or has_unused:
        assert members.size == 1, "refused before the start"
        return WholeModule(spec, training)
    return HfModule(spec, model, training)


class HfModule(EncoderModule):
    """A model of the library, gathered layer by layer; the rest stays."""

    def __init__(self, spec: HfSpec, model: Any, training: TrainingSettings) -> None:
        super().__init__(spec)
        self._spec = spec
        self._dtype = PRECISIONS[training.precision]
        self._names = own_names(model)
        self._layers = list(dict.fromkeys(filter(None, map(_layer_path, self._names.values()))))
        self.model = model
        # Nothing is dropped, so training mode would only let the library recompute layers itself.
        model.eval()
        if training.activation_checkpointing:
            for layer in self.own_units():
                # Inside the hooks that split parameters, unlike the library's own checkpointing.
                layer.forward = partial(_checkpointed, layer.forward)

    def own_units(self) -> Iterator[torch.nn.Module]:
        """Yield the layers."""
        for path in self._layers:
            yield self.model.get_submodule(path)

    @property
    def own_weights(self) -> dict[str, torch.Tensor]:
        """The parameters of the library's model, in canonical names."""
        found = dict(self.model.named_parameters())
        return {canonical: found[name] for canonical, name in self._names.items()}

    def encode(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """Return fp32 [texts, hidden] of each side, before dense layers."""
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
            pool(self._spec.pooling, side.batch.tokens(of_side[:, : side.batch.width]), side.batch)
            for of_side, side in zip(states, sides, strict=True)
        ]


def _layer_path(name: str) -> str | None:
    """Return the path of a weight's layer; None outside of the layers."""
    number = layer_of(name)
    if number is None:
        return None
    before, found, _ = name.partition(f".{number}.")
    return before + found.removesuffix(".")


def _checkpointed(forward: Any, *inputs: Any, **named: Any) -> Any:
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **named)
