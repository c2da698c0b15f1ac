"""What the engine `megatron` refuses before Spark starts."""

import pytest

from pipelines.engines.base import check_fit, load_engine
from pipelines.errors import InputError
from pipelines.models.architecture import architecture_of, check_framework
from pipelines.models.bert.spec import BertSpec
from pipelines.models.static.spec import StaticSpec
from pipelines.settings.load import parse

TRAINING = {"engine": "megatron", "framework": "torch", "workers": 2, "model_parallel": 2}


def config_with(**sections):
    sections["training"] = TRAINING | sections.get("training", {})
    return parse(sections)


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("training.sharding", {"training": {"sharding": "parameters"}}),
        ("training.framework", {"training": {"framework": "tensorflow"}}),
    ],
)
def test_what_it_does_not_know_is_refused(key, sections):
    with pytest.raises(InputError) as caught:
        check_fit(load_engine("megatron"), config_with(**sections))
    assert caught.value.key == key


def test_an_encoder_that_its_layers_do_not_make_up_is_refused():
    bert = BertSpec(vocabulary=50, layers=1, hidden=16, heads=2, intermediate=32)
    check_framework(architecture_of(bert), config_with())
    with pytest.raises(InputError, match="static has no form in megatron, set it to torch"):
        check_framework(architecture_of(StaticSpec(vocabulary=50, hidden=16)), config_with())
