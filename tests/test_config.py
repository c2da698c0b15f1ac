"""Settings: what is accepted, and how each wrong one is refused."""

import pytest
import yaml

from pipelines import config
from pipelines.config import dump, load, parse
from pipelines.errors import InputError
from pipelines.settings import Config


def test_the_default_is_valid_and_survives_a_file(tmp_path):
    (tmp_path / "a.yaml").write_text(dump(Config()))
    assert load(tmp_path / "a.yaml") == load() == Config()


def test_overrides_win_over_the_file(tmp_path):
    (tmp_path / "a.yaml").write_text("training: {workers: 3, granules_per_step: 6}\n")
    loaded = load(tmp_path / "a.yaml", ["training.workers=2", "training.learning_rate=5e-4"])
    assert (loaded.training.workers, loaded.training.learning_rate) == (2, 5e-4)


def test_spark_keys_flat_and_nested():
    tree = "spark.master: local[2]\nspark:\n  executor: {memory: 2g}\n  ui.enabled: true\n"
    found = load_text(tree).spark
    assert found == {"master": "local[2]", "executor.memory": "2g", "ui.enabled": "true"}


def test_mappings_by_names_with_dots_survive_a_file_and_take_overrides(tmp_path):
    text = (
        "promotion:\n  metrics: [retrieval.ndcg@10, sts.spearman]\n  minimum: {sts.spearman: 60}\n"
    )
    (tmp_path / "a.yaml").write_text(text)
    given = ["promotion.minimum.retrieval.ndcg@10=40", "promotion.tolerance={sts.spearman: 0.5}"]
    loaded = load(tmp_path / "a.yaml", given)
    assert loaded.promotion.minimum == {"sts.spearman": 60, "retrieval.ndcg@10": 40}
    assert loaded.promotion.tolerance == {"sts.spearman": 0.5}
    (tmp_path / "b.yaml").write_text(dump(loaded))
    assert load(tmp_path / "b.yaml") == loaded


def load_text(text):
    merged = {}
    for key, value in config._leaves(yaml.safe_load(text)):
        config._put(merged, key, value)
    return parse(merged)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.worker=3", r"^training\.worker: there is no such setting, did you mean train"),
        ("nothing.at.all=1", r"^nothing: there is no such setting"),
        ("training.workers=two", r"^training\.workers: `two` does not fit"),
        ("training.workers=0", r"^training\.workers: `0` does not fit.*greater than or equal to 1"),
        ("corpus.format=xml", r"^corpus\.format: `xml` does not fit.*'parquet'"),
        ("training.workers=3", r"^training\.granules_per_step: 2 granules cannot.*multiple of 3"),
        ("encoder.heads=3", r"^encoder\.heads: 3 does not divide"),
        ("encoder.kind=bag", r"^encoder\.kind: .*set encoder\.start: random"),
        ("objective.name=twins", r"^training\.dropout: .*for example 0\.1"),
        ("corpus.format=csv", r"^corpus\.inputs: it is empty"),
        ("corpus.pairs=group", r"^corpus\.group_column: "),
        ("corpus.languages=[english]", r"^corpus\.languages: `english` is no ISO 639 code"),
        ("corpus.sentences=true", r"^corpus\.sentences: `summary` does not ask for it"),
        ("corpus.pairs=single", r"^objective\.name: single texts"),
        ("corpus.min_characters=9999", r"^corpus\.min_characters: "),
        ("training.activation_checkpointing=true", r"^training\.activation_.*framework: torch"),
        ("promotion.metrics=[ndcg@10]", r"^promotion\.metrics: `ndcg@10` names no evaluation"),
        ("promotion.metrics=[]", r"^promotion\.metrics: `\[\]` does not fit.*at least 1 item"),
        ("promotion.minimum.a.b=1", r"^promotion\.minimum: `a\.b` is not one of promotion\.met"),
        (
            "promotion.tolerance.retrieval.ndcg@10=-1",
            r"^promotion\.tolerance\.retrieval\.ndcg@10: `-1`",
        ),
        ("promotion.tolerance=0.5", r"^promotion\.tolerance: `0\.5` does not fit"),
        ("novalue", r"^--set: `novalue` is not KEY=VALUE"),
        ("training.seed=[", r"^training\.seed: `\[` is not a YAML value"),
        ("training=3", r"^training: "),
    ],
)
def test_a_wrong_setting_is_one_line_with_its_key(override, message):
    with pytest.raises(InputError, match=message) as caught:
        load(None, [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no file"), ("a: [", "not readable YAML"), ("- 1\n", "holds no mapping")],
)
def test_a_wrong_file_is_named(tmp_path, content, message):
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_asynchronous_workers_need_not_share_a_step_evenly():
    config = load(overrides=["training.mode=async", "training.workers=3"])
    assert (config.training.workers, config.training.granules_per_step) == (3, 2)


def test_a_bag_has_no_heads():
    config = load(overrides=["encoder.start=random", "encoder.kind=bag", "encoder.hidden=250"])
    assert config.encoder.hidden == 250


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Config().training.workers = 3
