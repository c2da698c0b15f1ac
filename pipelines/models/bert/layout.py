"""How the members of the BERT family stand in a checkpoint: config.json, and names of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.models.bert.spec import BertSpec
from pipelines.models.weights import INITIAL_DEVIATION

CONFIG_KEYS = {
    "vocabulary": "vocab_size",
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "positions": "max_position_embeddings",
    "type_vocabulary": "type_vocab_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "pad_token_id": "pad_token_id",
}
"""What BERT's config.json calls the fields of a spec."""
_USUAL_DROPOUT = 0.1
"""What `transformers` takes where config.json says nothing, for each of the family."""


def model_type(config: Mapping[str, Any]) -> Any:
    """The type that config.json tells; BERT's where it tells none, as the oldest did not."""
    return config.get("model_type", "bert")


def no_rows(pad_token_id: int) -> int:
    """Positions begin with the first row of their table."""
    return 0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one member stands in a folder.

    Attributes:
        spec: Its spec, whose defaults count for what config.json does not tell.
        classes: Classes of `transformers` by the values of config.json's ``model_type``.
        keys: What config.json calls the fields of the spec; others have their defaults.
        accepted: What config.json may say of what the forward pass takes for granted, the default
            first, which is also written.
        dropout: config.json's keys for the shares of hidden states and of attention's
            probabilities that are dropped.
        names: Parts of canonical names, and what stands for them in the file of weights.
        prefix: What checkpoints with a head put before the names.
        skipped_rows: Rows at the beginning of the position table that no text uses, by the id of
            the padding token. They are left out when it is read, and written as zeros.
        pooler: Whether a model without head has a layer that no embedding depends on.
    """

    spec: type[BertSpec]
    classes: Mapping[str, str]
    keys: Mapping[str, str] = field(default_factory=lambda: CONFIG_KEYS)
    accepted: Mapping[str, tuple[Any, ...]]
    dropout: tuple[str, str] = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    names: tuple[tuple[str, str], ...] = ()
    prefix: str
    skipped_rows: Callable[[int], int] = no_rows
    pooler: bool = True

    def own_name(self, name: str) -> str:
        """What the file of weights calls a canonical name."""
        for canonical, own in self.names:
            name = name.replace(canonical, own)
        return name

    def to_config(self, spec: BertSpec) -> dict[str, Any]:
        """A spec as config.json."""
        shape = {key: getattr(spec, name) for name, key in self.keys.items()}
        shape[self.keys["positions"]] += self.skipped_rows(spec.pad_token_id)
        return {
            "architectures": [self.classes[spec.model_type]],
            "model_type": spec.model_type,
            **shape,
            **{key: values[0] for key, values in self.accepted.items() if values[0] is not None},
            **dict(zip(self.dropout, (spec.hidden_dropout, spec.attention_dropout), strict=True)),
            "initializer_range": INITIAL_DEVIATION,
            "torch_dtype": "float32",
        }

    def fields(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a spec that config.json tells.

        Raises:
            KeyError: It lacks one that has no default.
        """
        optional = {"type_vocabulary", "layer_norm_epsilon", "pad_token_id", "embedding_size"}
        told = {
            name: config[key]
            for name, key in self.keys.items()
            if not (name in optional and config.get(key) is None)
        }
        told["positions"] -= self.skipped_rows(self.pad_token_id(config))
        hidden, attention = (config.get(key, _USUAL_DROPOUT) for key in self.dropout)
        return {
            "model_type": model_type(config),
            "hidden_dropout": hidden,
            "attention_dropout": attention,
            **told,
        }

    def pad_token_id(self, config: Mapping[str, Any]) -> int:
        """The padding token that config.json tells."""
        told = config.get("pad_token_id")
        return self.spec.pad_token_id if told is None else int(told)

    def unknown(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What config.json says that the forward pass does not do."""
        told = {key: config.get(key, values[0]) for key, values in self.accepted.items()}
        return {key: value for key, value in told.items() if value not in self.accepted[key]}
