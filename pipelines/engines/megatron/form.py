"""Encoders of Megatron-Core's layers, a stage at a time. Runs on executors.

Megatron's layers hold a member's part of each matrix and exchange the sums. Around them the encoder
is that of :mod:`pipelines.models.frameworks.torch`: weights and hidden states are fp32, matrix
products have the requested precision, and dropout masks follow from seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from megatron.core.enums import ModelType
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    copy_to_tensor_model_parallel_region,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional

from pipelines.models.frameworks.torch import finished
from pipelines.models.frameworks.torch_batch import Batch
from pipelines.models.frameworks.torch_dropout import DropoutMasks
from pipelines.models.frameworks.torch_module import Inputs
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import part_bounds
from pipelines.settings.training import Place, Placement


class MegatronEncode(Protocol):
    """The forward pass of a stage: a module of PyTorch over this worker's part of the weights."""

    weights: Mapping[str, torch.nn.Parameter]

    def first_states(self, batch: Batch, masks: DropoutMasks | None) -> torch.Tensor:
        """Return the first layer's input, fp32 [tokens, hidden]; of the first stage."""
        ...

    def run_layers(
        self, states: torch.Tensor, batch: Batch, masks: DropoutMasks | None
    ) -> torch.Tensor:
        """Return fp32 [tokens, hidden] behind the layers of the stage."""
        ...

    def pooled(self, states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return fp32 [texts, hidden]; of the last stage."""
        ...


class MegatronForm(Protocol):
    """The registration of an architecture for `megatron`."""

    def __call__(
        self,
        spec: Any,
        config: TransformerConfig,
        shapes: Mapping[str, Sequence[int]],
        dtype: torch.dtype,
        *,
        checkpointed: bool,
    ) -> MegatronEncode:
        """Return the layers of a stage, without values of the weights.

        The spec and the shapes of the stage's weights describe the whole encoder; matrix products
        are of `dtype`. A checkpointed stage recomputes activations for their gradients.
        """
        ...


def layer_config(
    spec: EncoderSpec, layers: int, heads: int, placement: Placement
) -> TransformerConfig:
    """Return the configuration of Megatron's layers and schedules for an encoder."""
    return TransformerConfig(
        num_layers=layers,
        hidden_size=spec.hidden,
        num_attention_heads=heads,
        tensor_model_parallel_size=placement.members,
        pipeline_model_parallel_size=placement.stages,
        pipeline_dtype=torch.float32,
        # Weights come from a checkpoint, and go to the device as a whole.
        use_cpu_initialization=True,
        perform_initialization=False,
    )


def shared_input(states: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the input of divided matrices; the members' gradients of it are summed in fp32."""
    shared: torch.Tensor = copy_to_tensor_model_parallel_region(states)
    return shared.to(dtype)


class RowDivided(ColumnParallelLinear):  # type: ignore[misc] # the library has no types
    """A matrix [out, in] divided by its rows: members have parts of the output.

    The input comes from :func:`shared_input`. (Megatron names it after the transposed matrix.)
    """

    def __init__(self, shape: Sequence[int], config: TransformerConfig) -> None:
        rows, columns = shape
        super().__init__(
            columns, rows, config=config, init_method=_no_start, disable_grad_reduce=True
        )

    def product(self, states: torch.Tensor) -> torch.Tensor:
        """Return [tokens, part of out], of the type of the states."""
        output: torch.Tensor = self(states)[0]
        return output

    def _forward_impl(self, input: Any, weight: Any, *, bias: Any, **options: Any) -> Any:
        weight, bias = weight.to(input.dtype), bias.to(input.dtype)
        return super()._forward_impl(input, weight, bias=bias, **options)


class ColumnDivided(RowParallelLinear):  # type: ignore[misc] # the library has no types
    """A matrix [out, in] divided by its columns: members have parts of the input.

    The sum over them is made in fp32.
    """

    def __init__(self, shape: Sequence[int], config: TransformerConfig) -> None:
        rows, columns = shape
        super().__init__(
            columns,
            rows,
            config=config,
            init_method=_no_start,
            bias=True,
            input_is_parallel=True,
            skip_bias_add=False,
        )

    def product(self, states: torch.Tensor) -> torch.Tensor:
        """Return fp32 [tokens, out]."""
        output: torch.Tensor = self(states)[0]
        return output

    def _forward_impl(self, input: Any, weight: Any, **options: Any) -> Any:
        return super()._forward_impl(input, weight.to(input.dtype), **options).float()


class DividedWords(VocabParallelEmbedding):  # type: ignore[misc] # the library has no types
    """The word embedding, divided by its rows; members' counts may differ by one.

    Megatron itself requires equal parts, and pads the vocabulary.
    """

    def __init__(self, shape: Sequence[int], config: TransformerConfig) -> None:
        rows, width = shape
        members = config.tensor_model_parallel_size
        padded = -(-rows // members) * members
        super().__init__(padded, width, init_method=_no_start, config=config)
        bounds = part_bounds(rows, members, self.tp_group.rank())
        self.vocab_start_index, self.vocab_end_index = bounds
        part = torch.empty(bounds[1] - bounds[0], width)
        self.weight = torch.nn.Parameter(part)


def _no_start(weight: torch.Tensor) -> None:
    """Do nothing: a checkpoint sets the weight later."""


class MegatronStage(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """A stage of an encoder as Megatron's schedules call it.

    Between stages, states travel as a tensor [rows, 1, hidden] with the tokens of all sides of a
    micro-batch. All micro-batches have as many rows as the one with the most tokens needs. `finish`
    are weights of the dense layers behind pooling; of the last stage.
    """

    model_type = ModelType.encoder_or_decoder

    def __init__(
        self,
        spec: EncoderSpec,
        config: TransformerConfig,
        encode: MegatronEncode,
        finish: Mapping[str, torch.nn.Parameter],
        place: Place,
        placement: Placement,
    ) -> None:
        super().__init__()
        self.config = config
        self.encode = encode
        self._dense = torch.nn.ParameterList(finish.values())
        self.weights: dict[str, torch.nn.Parameter] = {**encode.weights, **finish}
        self._spec = spec
        self._is_last = place.stage == placement.stages - 1
        self._states: torch.Tensor | None = None

    def set_input_tensor(self, states: Sequence[torch.Tensor | None]) -> None:
        """Take what the stage before has sent; nothing in the first stage."""
        (self._states,) = states

    def forward(self, sides: Sequence[Inputs], rows: int) -> Any:
        """Return the states for the next stage, or the embeddings of each side, of length 1.

        The tensor between stages has `rows` rows.
        """
        counts = [len(side.batch.token_ids) for side in sides]
        if self._states is None:
            parts = [self.encode.first_states(*side) for side in sides]
        else:
            parts = self._states[: sum(counts), 0].split(counts)
        after = [
            self.encode.run_layers(part, *side) for part, side in zip(parts, sides, strict=True)
        ]
        if not self._is_last:
            states = functional.pad(torch.cat(after), (0, 0, 0, rows - sum(counts)))
            return states[:, None].contiguous()
        pooled = [
            self.encode.pooled(states, side.batch)
            for states, side in zip(after, sides, strict=True)
        ]
        return [
            functional.normalize(finished(self._spec, self.weights, states), dim=-1)
            for states in pooled
        ]
