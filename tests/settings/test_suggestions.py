"""The setting that somebody meant."""

import pytest

from pipelines.errors import InputError
from pipelines.settings.fields import FROM_ELSEWHERE, IN_WORDS, fields, keys, remedy
from pipelines.settings.load import load

KNOWN = [name for name, *_ in fields()]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("training.lr", "Did you mean training.learning_rate?"),
        ("lr", "Did you mean training.learning_rate?"),
        ("optimizer.lr", "Did you mean training.learning_rate?"),
        ("training.num_train_epochs", "Did you mean training.epochs?"),
        ("train.epochs", "Did you mean training.epochs?"),
        ("training.worker", "Did you mean training.workers?"),
        ("training.Learning-Rate", "Did you mean training.learning_rate?"),
        ("model.max_seq_length", "Did you mean tokens.max_length?"),
        ("training.output_dir", "Did you mean run.folder?"),
        ("encoder.model_name_or_path", "Did you mean encoder.start?"),
        ("corpus.folder", "Did you mean prepared.folder or run.folder?"),
        ("training.fp16", "Set training.precision=bf16"),
        ("nothing.at.all", "See docs/reference/settings.md for all settings"),
    ],
)
def test_what_was_meant(key, meant):
    assert remedy(key, KNOWN) == meant


def test_the_size_of_a_batch_is_two_settings():
    told = remedy("training.per_device_train_batch_size", KNOWN)
    assert "training.granules_per_step" in told
    assert "lanes.granule" in told


def test_every_suggestion_is_a_setting():
    known = [*KNOWN, "spark.master"]
    assert [meant for meant in FROM_ELSEWHERE.values() if meant not in known] == []
    words = {
        word.rstrip(".:,").partition("=")[0] for one in IN_WORDS.values() for word in one.split()
    }
    assert [word for word in words if "." in word and word not in known] == []


def test_names_of_other_tools_are_none_of_ours():
    ours = {name.rpartition(".")[2] for name in KNOWN}
    # `tokens.model` and `embedding.model` are other things than what is trained, and
    # `publish.columns` are of a store.
    assert ours & {*FROM_ELSEWHERE, *IN_WORDS} <= {"model", "columns"}


def test_what_is_in_a_section_that_there_is_not_counts():
    with pytest.raises(InputError, match=r"^optimizer: .* Did you mean training\.learning_rate\?$"):
        load(None, ["optimizer.lr=1"])


def test_the_keys_are_those_of_the_page():
    assert {*keys()} == {name.removesuffix(".*") for name in KNOWN}
