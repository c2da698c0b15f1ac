"""Variables that have another value for a while."""

import os

import pytest

from pipelines.variables import variable_set

NAME = "SENTENCE_PIPELINES_TEST"


@pytest.mark.parametrize("before", [None, "", "theirs"])
def test_a_variable_is_afterwards_as_it_was(monkeypatch, before):
    monkeypatch.setenv(NAME, before or "")
    if before is None:
        monkeypatch.delenv(NAME)
    with pytest.raises(KeyError), variable_set(NAME, "ours"):
        assert os.environ[NAME] == "ours"
        raise KeyError
    assert os.environ.get(NAME) == before
