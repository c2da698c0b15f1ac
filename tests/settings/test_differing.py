"""Which settings differ from their defaults."""

from pipelines.settings.load import load
from pipelines.settings.resuming import differing_settings


def test_nothing_differs_by_itself() -> None:
    assert differing_settings(load(None)) == {}


def test_a_part_and_a_mapping_and_the_keys_of_a_loss() -> None:
    config = load(
        None,
        [
            "corpus.pairs=single",
            "encoder.lora.rank=4",
            "encoder.prompts={query: 'ask: '}",
            "objective.name=simcse",
            "objective.temperature=0.07",
            "training.dropout=0.2",
            "spark.executor.memory=2g",
        ],
    )
    assert differing_settings(config) == {
        "corpus.pairs": "single",
        "encoder.prompts": {"query": "ask: "},
        "encoder.lora.rank": 4,
        "objective.temperature": 0.07,
        "objective.name": "simcse",
        "training.dropout": 0.2,
        "spark.executor.memory": "2g",
    }
    assert differing_settings(config, ("training",)) == {"training.dropout": 0.2}
