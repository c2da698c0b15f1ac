"""What a static encoder is made of; see :class:`pipelines.models.architecture.Architecture`."""

from __future__ import annotations

from pipelines.models.architecture import Architecture, FolderFormat
from pipelines.models.static import folder, spec
from pipelines.models.static import folder as weights
from pipelines.models.weights import normal_weights

STATIC = Architecture(
    spec=spec.StaticSpec,
    models="StaticEmbedding of sentence-transformers, model2vec",
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
    leaves_ends_out=True,
    # No `torch_module`: the one matrix is one unit.
    forms={
        "tensorflow": "pipelines.models.static.tensorflow:encode",
        "torch": "pipelines.models.static.torch:StaticEncoder",
        "bigdl": "pipelines.engines.bigdl.static:encode",
        "bigdl_memory": "pipelines.engines.bigdl.static:token_floats",
        "openvino": "pipelines.models.static.openvino:encode",
    },
)
