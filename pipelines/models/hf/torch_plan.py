"""The tensor parallel plans of `transformers`, and models that are divided by them.

A plan says of each linear layer, by the path of its module, whether it is divided by rows
(``colwise``: what it gives is divided) or by columns (``rowwise``: what it takes is), and of which
weights of others each member sees a part of the gradient. A member's model is the library's own
with a part of each matrix: attention finds the number of its heads from what it is given.

Source: ``base_model_tp_plan`` of the library's configurations, and "Megatron-LM", see
:mod:`pipelines.models.frameworks.torch_division`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from pipelines.models.division import part_shape
from pipelines.models.frameworks.torch_division import Members
from pipelines.models.frameworks.torch_linear import linear
from pipelines.models.hf.torch_library import UNUSED, config_of, empty_model, own_names

BY_ROWS, BY_COLUMNS = "colwise", "rowwise"
"""The library names what is divided of the transposed matrix."""
GRADIENT_IN_PARTS = "replicated_with_grad_allreduce"
_STYLES = frozenset({BY_ROWS, BY_COLUMNS, GRADIENT_IN_PARTS})
_NUMBER = re.compile(r"\.\d+\.")

DIVIDED_TYPES = (
    *("arcee", "cohere", "cohere2", "cwm", "ernie4_5", "eurobert", "exaone4", "gemma", "gemma2"),
    *("gemma3_text", "gpt_neox", "granite", "helium", "hyperclovax", "internlm3", "iquestcoder"),
    *("jais2", "llama", "ministral", "ministral3", "mistral", "nanochat", "nemotron", "olmo"),
    *("phi", "qwen2", "qwen3", "seed_oss", "smollm3", "starcoder2", "ultrabert", "vaultgemma"),
)
"""Those whose gradients in two parts were held against the whole model's, which no look at a plan
can replace: some types compute across the numbers that members have parts of."""


def why_undivided(text: str) -> str | None:
    """Why a model cannot be divided, if it cannot.

    Args:
        text: A config.json.
    """
    config = config_of(text)
    plan = getattr(config, "base_model_tp_plan", None) or {}
    kind = f"`model_type: {config.model_type}`"
    if not plan:
        return f"transformers has no plan by which {kind} is divided"
    if config.model_type not in DIVIDED_TYPES:
        return f"{kind} is none of the types that are divided: {', '.join(DIVIDED_TYPES)}"
    model = empty_model(text)
    styles = _styles(config, model)
    if {*plan} != {_generic(path) for path in styles} or {*styles.values()} - _STYLES:
        return f"this release of transformers has another plan by which {kind} is divided"
    if any(name.startswith(UNUSED) for name, _ in model.named_parameters()):
        return f"{kind} has weights that no embedding depends on"
    if beside := sorted(_beside(model, styles)):
        return f"{kind} has {beside[0]} beside its divided matrices"
    return None


def division_axes(text: str) -> dict[str, int]:
    """The axis along which each divided weight is divided, by canonical names."""
    model = empty_model(text)
    return _axes(model, _styles(config_of(text), model))


def _axes(model: Any, styles: Mapping[str, str]) -> dict[str, int]:
    axes = {}
    for canonical, name in own_names(model).items():
        path, _, leaf = name.rpartition(".")
        style = styles.get(path)
        if model.get_submodule(path) is _divided_words(model) or style == BY_ROWS:
            axes[canonical] = 0
        elif style == BY_COLUMNS and leaf == "weight":
            axes[canonical] = 1
    return axes


def divided_numbers(text: str) -> dict[str, int]:
    """What members must share evenly."""
    config = config_of(text).get_text_config()
    heads = config.num_attention_heads
    return {
        "attention heads": heads,
        "heads of keys and values": getattr(config, "num_key_value_heads", None) or heads,
        "numbers of the wide layer": config.intermediate_size,
    }


def divide(model: Any, text: str, members: Members) -> None:
    """Makes a model that of one member: with a part of each matrix, and their exchanges.

    Args:
        model: Of :func:`.torch_library.empty_model`; its parameters have no memory.
        text: Its config.json.
        members: That hold it together.
    """
    styles, names = _styles(config_of(text), model), own_names(model)
    axes = {names[canonical]: axis for canonical, axis in _axes(model, styles).items()}
    words = _divided_words(model)
    for path, style in styles.items():
        module = model.get_submodule(path)
        if style == BY_COLUMNS:
            module.__class__, module.members = _ColumnsLinear, members
        elif style == GRADIENT_IN_PARTS:
            kind = type(module)
            module.__class__ = type(kind.__name__, (_EnteredWeights, kind), {})
            module.members = members
    for path in _blocks(styles):
        enter = _Enter(members)
        model.get_submodule(path).register_forward_pre_hook(enter, with_kwargs=True)
    if words is not None:
        words.__class__, words.members = _DividedWords, members
    for name, parameter in list(model.named_parameters()):
        shape = part_shape(parameter.shape, axes.get(name), members.size, members.member)
        owner, _, leaf = name.rpartition(".")
        part = torch.nn.Parameter(torch.empty(shape, device="meta"))
        model.get_submodule(owner).register_parameter(leaf, part)


class _Enter:
    """Has states enter what members compute together; a hook of a block of divided layers.

    Once for all of its layers, whose gradients are added up before they are exchanged.

    Args:
        members: That compute together.
    """

    def __init__(self, members: Members) -> None:
        self._members = members

    def __call__(
        self, module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if inputs:
            return (self._members.enter(inputs[0]), *inputs[1:]), named
        return inputs, named | {"hidden_states": self._members.enter(named["hidden_states"])}


class _ColumnsLinear(torch.nn.Linear):  # type: ignore[misc]
    """A layer of whose matrix each member has some columns."""

    members: Members

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """The same on all members; a bias is added once, behind the sum."""
        whole = self.members.add_up(linear(states, self.weight, None))
        return whole if self.bias is None else whole + self.bias


class _DividedWords(torch.nn.Embedding):  # type: ignore[misc]
    """The word embedding, of which each member has some rows."""

    members: Members

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The same on all members."""
        found = self.members.look_up(
            self.weight,
            ids.flatten(),
            self.num_embeddings,
            sparse=self.sparse,
            padding=self.padding_idx,
        )
        return found.view(*ids.shape, -1)


class _EnteredWeights:
    """A layer that each member has as a whole, and applies to its part of the states alone."""

    members: Members
    _parameters: dict[str, torch.Tensor | None]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The layer's own, with weights whose gradient is the sum of the members'."""
        before = dict(self._parameters)
        try:
            for name, own in before.items():
                if own is not None:
                    self._parameters[name] = self.members.enter(own)
            return super().forward(*inputs, **named)  # type: ignore[misc]
        finally:
            # Those who split parameters find theirs again when the layer has computed.
            self._parameters.update(before)


def _styles(config: Any, model: Any) -> dict[str, str]:
    """What the plan says of the modules that it names, by their paths."""
    plan: Mapping[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    paths = (path for path, _ in model.named_modules())
    return {path: plan[_generic(path)] for path in paths if _generic(path) in plan}


def _generic(path: str) -> str:
    """A path as plans have it, for all layers."""
    return _NUMBER.sub(".*.", path)


def _blocks(styles: Mapping[str, str]) -> list[str]:
    """The paths of what has layers that take whole states, and give parts."""
    of_rows = (path.rpartition(".")[0] for path, style in styles.items() if style == BY_ROWS)
    return list(dict.fromkeys(of_rows))


def _beside(model: Any, styles: Mapping[str, str]) -> set[str]:
    """Layers with weights of their own within those blocks that the plan does not name."""
    return {
        f"{path}.{inner}"
        for path in _blocks(styles)
        for inner, module in model.get_submodule(path).named_modules()
        if [*module.parameters(recurse=False)] and f"{path}.{inner}".rstrip(".") not in styles
    }


def _divided_words(model: Any) -> torch.nn.Embedding | None:
    """The word embedding, if it is one of PyTorch's own; others are held by each member."""
    words = model.get_input_embeddings()
    return words if type(words) is torch.nn.Embedding else None
