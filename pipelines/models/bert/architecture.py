"""What BERT is made of; see :class:`pipelines.models.architecture.Architecture`."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.models.architecture import Architecture
from pipelines.models.bert import spec
from pipelines.models.bert import spec as weights
from pipelines.models.bert.folder import folder_format
from pipelines.models.bert.spec import DIVISION, Layout
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
"""What config.json may say of what the forms take for granted."""


def family_member(
    layout: Layout,
    *,
    models: str,
    check_settings: Callable[[EncoderSettings], None] = spec.check_settings,
    without: tuple[str, ...] = (),
) -> Architecture:
    """An architecture that shares BERT's forms.

    Args:
        layout: How it stands in a folder.
        models: What starts from it, for people.
        check_settings: Refuses settings of a random start.
        without: Names of the forms that do not know what it has beside BERT.
    """
    return Architecture(
        spec=layout.spec,
        models=models,
        check_settings=check_settings,
        shape=spec.shape,
        random_lengths=spec.random_lengths,
        weight_shapes=weights.weight_shapes,
        random_weights=normal_weights,
        folder=folder_format(layout),
        described=spec.described,
        described_settings=spec.described_settings,
        forms={name: form for name, form in FORMS.items() if name not in without},
        division=DIVISION,
        rewrites=("tokens", "decoder"),
    )


BERT = family_member(
    Layout(spec=spec.BertSpec, classes={"bert": "BertModel"}, accepted=ACCEPTED, prefix="bert."),
    models="BERT, and what has its shape: MiniLM, BGE, GTE and E5 in English, Arctic Embed",
)
