"""What BERT is made of; see :class:`pipelines.models.architecture.Architecture`."""

from __future__ import annotations

from pipelines.models.architecture import Architecture, FolderFormat
from pipelines.models.bert import folder, spec, weights
from pipelines.models.weights import normal_weights

BERT = Architecture(
    spec=spec.BertSpec,
    check_settings=spec.check_settings,
    shape=spec.shape,
    random_lengths=spec.random_lengths,
    weight_shapes=weights.weight_shapes,
    random_weights=normal_weights,
    folder=FolderFormat(
        recognises=folder.recognises,
        read=folder.read,
        write=folder.write,
        lengths=folder.lengths,
    ),
    described=spec.described,
    described_settings=spec.described_settings,
    forms={
        "tensorflow": "pipelines.models.bert.tensorflow:encode",
        "torch": "pipelines.models.bert.torch:BertEncoder",
        "torch_module": "pipelines.models.bert.torch_sharding:BertModule",
        "bigdl": "pipelines.models.bert.dllib:encode",
        "bigdl_memory": "pipelines.models.bert.dllib_memory:token_floats",
        "openvino": "pipelines.models.bert.openvino:encode",
    },
)
