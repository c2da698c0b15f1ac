"""The members of the BERT family, as :class:`.Architecture`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from pipelines.models.architecture import Architecture
from pipelines.models.bert import spec
from pipelines.models.bert.folder import folder_format
from pipelines.models.bert.spec import CONFIG_KEYS, DIVISION, BertSpec, Layout, refuse_random
from pipelines.models.weights import normal_weights
from pipelines.settings import EncoderSettings

FORMS = {
    "tensorflow": "pipelines.models.bert.tensorflow:encode",
    "mesh": "pipelines.engines.mesh.bert:FORM",
    "torch": "pipelines.models.bert.torch:BertEncoder",
    "torch_module": "pipelines.models.bert.torch:BertModule",
    "megatron": "pipelines.engines.megatron.bert:MegatronBert",
    "bigdl": "pipelines.engines.bigdl.bert:encode",
    "bigdl_memory": "pipelines.engines.bigdl.bert:token_floats",
    "openvino": "pipelines.models.bert.openvino:encode",
}
ACCEPTED = {
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
}
"""Values of config.json that the forms assume."""


def family_member(
    layout: Layout,
    *,
    models: str,
    check_settings: Callable[[EncoderSettings], None] = spec.check_settings,
    without: tuple[str, ...] = (),
) -> Architecture:
    """Return an architecture with BERT's forms, except ``without``: these lack its additions.

    ``models`` are well-known models of it, for people. ``check_settings`` refuses settings of a
    random start.
    """
    return Architecture(
        spec=layout.spec,
        models=models,
        check_settings=check_settings,
        shape=spec.shape,
        random_lengths=spec.random_lengths,
        weight_shapes=spec.weight_shapes,
        random_weights=normal_weights,
        folder=folder_format(layout),
        described=spec.described,
        described_settings=spec.described_settings,
        forms={name: form for name, form in FORMS.items() if name not in without},
        division=DIVISION,
        token_losses=("tokens", "decoder"),
        packs=True,
        compiles=True,
    )


BERT = family_member(
    Layout(spec=BertSpec, classes={"bert": "BertModel"}, accepted=ACCEPTED, prefix="bert."),
    models="BERT, and what has its shape: MiniLM, BGE, GTE and E5 in English, Arctic Embed",
)


@dataclass(frozen=True, kw_only=True)
class RobertaSpec(BertSpec):
    """BERT with positions that count from after the padding token's id.

    The weights here leave out the earlier rows of the position table. A padding token spelled out
    in a text uses the last of them; training leaves it at zero.

    Sources: Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach", 2019,
    arXiv:1907.11692; Conneau et al., "Unsupervised Cross-lingual Representation Learning at Scale",
    ACL 2020, arXiv:1911.02116.
    """

    kind: ClassVar[str] = "roberta"

    pad_token_id: int = 1
    model_type: str = "roberta"

    @property
    def placeless_token(self) -> int | None:
        """The padding token: a text may spell it out."""
        return self.pad_token_id


ROBERTA = family_member(
    Layout(
        spec=RobertaSpec,
        classes={
            "roberta": "RobertaModel",
            "xlm-roberta": "XLMRobertaModel",
            "camembert": "CamembertModel",
        },
        accepted=ACCEPTED,
        prefix="roberta.",
        # The row of padding, and those before it.
        skipped_rows=lambda pad_token_id: pad_token_id + 1,
    ),
    models="RoBERTa, XLM-R (multilingual E5, BGE-M3, Arctic Embed L 2), CamemBERT",
    # Vocabularies that are trained here have other ids for the special tokens.
    check_settings=refuse_random,
)


@dataclass(frozen=True, kw_only=True)
class DistilBertSpec(BertSpec):
    """BERT without segments.

    Source: Sanh, Debut, Chaumond and Wolf, "DistilBERT, a distilled version of BERT: smaller,
    faster, cheaper and lighter", 2019, arXiv:1910.01108.
    """

    kind: ClassVar[str] = "distilbert"

    type_vocabulary: int = 0
    model_type: str = "distilbert"


DISTILBERT = family_member(
    Layout(
        spec=DistilBertSpec,
        classes={"distilbert": "DistilBertModel"},
        keys={
            "vocabulary": "vocab_size",
            "layers": "n_layers",
            "hidden": "dim",
            "heads": "n_heads",
            "intermediate": "hidden_dim",
            "positions": "max_position_embeddings",
            "pad_token_id": "pad_token_id",
        },
        accepted={"activation": ("gelu",)},
        dropout=("dropout", "attention_dropout"),
        names=(
            ("encoder.layer.", "transformer.layer."),
            ("attention.self.query", "attention.q_lin"),
            ("attention.self.key", "attention.k_lin"),
            ("attention.self.value", "attention.v_lin"),
            ("attention.output.dense", "attention.out_lin"),
            ("attention.output.LayerNorm", "sa_layer_norm"),
            ("intermediate.dense", "ffn.lin1"),
            ("output.dense", "ffn.lin2"),
            ("output.LayerNorm", "output_layer_norm"),
        ),
        prefix="distilbert.",
        pooler=False,
    ),
    models="DistilBERT",
)


@dataclass(frozen=True, kw_only=True)
class ElectraSpec(BertSpec):
    """BERT with a width of its own for words, often narrower than the layers.

    Source: Clark, Luong, Le and Manning, "ELECTRA: Pre-training Text Encoders as Discriminators
    Rather Than Generators", ICLR 2020, arXiv:2003.10555.
    """

    kind: ClassVar[str] = "electra"

    embedding_size: int | None = 128
    model_type: str = "electra"


ELECTRA = family_member(
    Layout(
        spec=ElectraSpec,
        classes={"electra": "ElectraModel"},
        keys={**CONFIG_KEYS, "embedding_size": "embedding_size"},
        accepted=ACCEPTED,
        prefix="electra.",
        pooler=False,
    ),
    models="ELECTRA's discriminator",
)

MPNET_BUCKETS = 32
"""Distances that attention tells apart: transformers' number, whatever config.json says."""
MPNET_SKIPPED_ROWS = 2
"""Rows of the position table: MPNet takes token 1 for padding, whatever config.json says."""


@dataclass(frozen=True, kw_only=True)
class MPNetSpec(BertSpec):
    """BERT without segments, and with attention that also depends on distances of tokens.

    Source: Song, Tan, Qin, Lu and Liu, "MPNet: Masked and Permuted Pre-training for Language
    Understanding", NeurIPS 2020, arXiv:2004.09297.
    """

    kind: ClassVar[str] = "mpnet"

    pad_token_id: int = 1
    type_vocabulary: int = 0
    relative_buckets: int = MPNET_BUCKETS
    model_type: str = "mpnet"

    @property
    def placeless_token(self) -> int | None:
        """MPNet's padding token: a text may spell it out."""
        return MPNET_SKIPPED_ROWS - 1


MPNET = family_member(
    Layout(
        spec=MPNetSpec,
        classes={"mpnet": "MPNetModel"},
        keys={name: key for name, key in CONFIG_KEYS.items() if name != "type_vocabulary"},
        accepted={"hidden_act": ("gelu",), "relative_attention_num_buckets": (MPNET_BUCKETS,)},
        names=(
            ("attention.self.query", "attention.attn.q"),
            ("attention.self.key", "attention.attn.k"),
            ("attention.self.value", "attention.attn.v"),
            ("attention.output.dense", "attention.attn.o"),
            ("attention.output.LayerNorm", "attention.LayerNorm"),
        ),
        prefix="mpnet.",
        skipped_rows=lambda pad_token_id: MPNET_SKIPPED_ROWS,
    ),
    models="MPNet (all-mpnet-base-v2 and others)",
    check_settings=refuse_random,
    # The attention of the others knows no bias with a gradient.
    without=("tensorflow", "mesh", "bigdl", "bigdl_memory", "openvino"),
)
