"""How long a store is waited for that does not answer."""

from __future__ import annotations

import logging

import pytest

from pipelines.files import conditional
from pipelines.files.locations import location
from pipelines.files.stores import Store
from pipelines.settings.spark import StorageSettings


@pytest.mark.slow
def test_a_store_that_was_away_is_asked_once_until_it_is_back(caplog):
    store = Store("memory", "away", StorageSettings(retry_seconds=3.0))
    asked = []

    def fail():
        asked.append(None)
        raise OSError("no connection")

    with caplog.at_level(logging.WARNING), pytest.raises(OSError, match="no connection"):
        store.retried("reading", fail)
    assert len(asked) > 1
    assert caplog.messages == ["reading: attempt 4 failed (no connection)"]
    asked.clear()
    # What clears up after an error does not wait for the store as long again.
    with pytest.raises(OSError, match="no connection"):
        store.retried("deleting", fail)
    assert len(asked) == 1
    assert store.retried("reading", lambda: "back") == "back"
    asked.clear()
    with pytest.raises(OSError, match="no connection"):
        store.retried("reading", fail)
    assert len(asked) > 1


def test_credentials_of_which_no_client_can_be_made_are_an_error_of_files(tmp_path, monkeypatch):
    credentials = tmp_path / "credentials.json"
    credentials.write_text('{"type": "external_account", "audience": "nobody"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(credentials))
    with pytest.raises(OSError, match="gs://bucket/file"):
        conditional.read(location("gs://bucket/file", StorageSettings()))
