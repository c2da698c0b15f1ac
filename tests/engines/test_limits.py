"""Each limit of the table is refused with its key, its reason and its remedy."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from pipelines.engines.base import check_fit, load_engine
from pipelines.errors import InputError, in_sentences
from pipelines.models.architecture import architecture_of, check_framework
from pipelines.models.bert.spec import BertSpec
from pipelines.models.static.architecture import StaticSpec
from pipelines.settings import capabilities
from pipelines.settings.capabilities import LIMITS
from pipelines.settings.load import parse

ASKING = {
    "training.precision": {"training": {"precision": "bf16"}},
    "training.ema": {"training": {"ema": 0.99}},
    "training.patience": {
        "training": {"patience": 1, "keep_best": "retrieval.ndcg@10"},
        "evaluation": {"every_checkpoints": 1},
    },
    "training.checkpoint_minutes": {"training": {"checkpoint_minutes": 5}},
    "encoder.lora.rank": {"encoder": {"lora": {"rank": 4}}},
    "encoder.freeze": {"encoder": {"freeze": {"embeddings": True}}},
    "training.dropout": {"training": {"dropout": 0.1}},
    "objective.negatives": {"objective": {"negatives": "step"}},
    "objective.name": {"objective": {"name": "mlm"}, "corpus": {"pairs": "single"}},
    "objective.dimensions": {"objective": {"dimensions": [32]}},
    "objective.directions": {"objective": {"directions": ["query_to_doc", "doc_to_query"]}},
    "corpus.sources": {"corpus": {"sources": [{"name": "one"}, {"name": "two"}]}},
    "training.tokens_per_forward": {"training": {"tokens_per_forward": 512}},
    "training.activation_checkpointing": {"training": {"activation_checkpointing": True}},
    "training.compile": {"training": {"compile": True}},
    "training.compression": {"training": {"compression": "fp16"}},
    "bf16 gradients": {"training": {"compression": "bf16"}},
    "training.offload": {"training": {"offload": "cpu"}},
    "training.model_parallel": {"training": {"model_parallel": 2}},
    "training.pipeline_parallel": {"training": {"pipeline_parallel": 2}},
}
"""By the key or name of a feature, settings that ask for it."""
DLLIB = {"engine": "bigdl", "framework": "bigdl", "dropout": 0.0}
TORCH = {"engine": "torch", "framework": "torch"}
TRAININGS = {
    capabilities.NOT_TORCH.name: {"engine": "horovod"},
    capabilities.BIGDL.name: DLLIB,
    capabilities.ALONE.name: {"engine": "elephas", "mode": "async"},
    capabilities.NOT_TOGETHER.name: {"engine": "elephas", "mode": "hogwild"},
    capabilities.SHARDED.name: TORCH | {"sharding": "parameters"},
    capabilities.STAGES.name: TORCH | {"pipeline_parallel": 2},
    capabilities.DIVIDED.name: TORCH | {"model_parallel": 2},
    capabilities.STAGES_ALONE.name: TORCH | {"pipeline_parallel": 2},
    capabilities.FED.name: {"engine": "tensorflowonspark", "feed": "spark"},
    capabilities.UNSHARDED.name: TORCH,
    capabilities.DLLIB.name: DLLIB,
    capabilities.HOROVOD.name: TORCH | {"engine": "horovod"},
    capabilities.TORCH.name: TORCH,
    capabilities.TORCH_PARTS.name: TORCH | {"sharding": "parameters"},
    capabilities.ORCA.name: TORCH | {"engine": "bigdl"},
    capabilities.DEEPSPEED_STAGES.name: TORCH | {"engine": "deepspeed", "pipeline_parallel": 2},
    capabilities.ELEPHAS.name: {"engine": "elephas"},
    capabilities.ELEPHAS_WORKERS.name: {"engine": "elephas", "workers": 2},
    capabilities.MEGATRON.name: TORCH | {"engine": "megatron"},
    capabilities.MESH.name: {"engine": "mesh"},
}
"""By the name of a scope, a training of it."""


@pytest.mark.parametrize(
    "limit", LIMITS, ids=lambda limit: f"{limit.feature.name}, {limit.scope.name}"
)
def test_a_limit_is_refused_with_its_line(limit):
    asking = ASKING.get(limit.feature.name) or ASKING[limit.feature.key]
    training = TRAININGS[limit.scope.name] | asking.get("training", {})
    with pytest.raises(InputError) as caught:
        config = parse(asking | {"training": training})
        assert limit.scope.engine is not None, "known as soon as settings are read"
        check_fit(load_engine(training["engine"], training.get("framework", "")), config)
    key = limit.key or limit.feature.key
    problem = limit.problem.format(
        training=SimpleNamespace(**{"framework": "tensorflow"} | training)
    )
    assert str(caught.value) == f"{key}: {in_sentences(problem, limit.remedy)}"


@pytest.mark.parametrize(
    ("start", "share", "refused"),
    [("default", None, True), ("default", 0.0, False), ("random", None, False)],
)
def test_dropout_that_is_unset_is_that_of_the_start(start, share, refused):
    training = DLLIB | {"dropout": share}
    config = parse({"encoder": {"start": start}, "training": training})
    with pytest.raises(InputError) if refused else nullcontext():
        check_fit(load_engine("bigdl"), config)


def test_one_worker_of_elephas_sees_a_whole_step():
    training = {"engine": "elephas", "workers": 1}
    config = parse({"training": training, "objective": {"negatives": "step"}})
    check_fit(load_engine("elephas"), config)


def test_an_encoder_that_the_layers_of_megatron_do_not_make_up_is_refused():
    config = parse({"training": TRAININGS[capabilities.MEGATRON.name]})
    bert = BertSpec(vocabulary=50, layers=1, hidden=16, heads=2, intermediate=32)
    check_framework(architecture_of(bert), config)
    with pytest.raises(InputError, match=r"no implementation in megatron\. Set it to torch"):
        check_framework(architecture_of(StaticSpec(vocabulary=50, hidden=16)), config)
