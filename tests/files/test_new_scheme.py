"""A new kind of store is a line of the schemes and one of the clients; all else follows."""

import pytest
from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem

from pipelines.errors import InputError
from pipelines.files import storage, stores
from pipelines.files.locations import location
from pipelines.files.stores import OpenStore
from pipelines.settings.base import STORES, Scheme
from pipelines.settings.load import load


@pytest.fixture(autouse=True)
def registered(monkeypatch, tmp_path):
    """Both lines; a bucket of this store is a folder of the test."""

    def client(store):
        files = FSSpecHandler(LocalFileSystem(auto_mkdir=True))
        return OpenStore(PyFileSystem(files), str(tmp_path / store.authority))

    monkeypatch.setitem(STORES, "shelf", Scheme("shelf"))
    monkeypatch.setitem(stores._CLIENTS, "shelf", stores._Clients(client))


def test_settings_take_its_addresses():
    config = load(None, ["run.folder=shelf://bucket/run"])
    assert str(location(config.run.folder)) == "shelf://bucket/run"
    with pytest.raises(InputError, match=r"^run\.folder: .*names no bucket"):
        load(None, ["run.folder=shelf:///run"])


def test_folders_there_are_whole_or_absent(tmp_path):
    folder = location("shelf://bucket/run")
    for value in (1, 2):
        with storage.new_folder(folder) as aside:
            storage.write_json(aside / "file.json", value)
    with pytest.raises(OSError, match="killed"), storage.new_folder(folder) as aside:
        storage.write_json(aside / "file.json", 3)
        raise OSError("killed")
    assert storage.read_json(storage.versions.current(folder) / "file.json") == 2
    storage.remove_folder(folder)
    assert not [path for path in (tmp_path / "bucket").rglob("*") if path.is_file()]


def test_requests_are_repeated(monkeypatch):
    place = location("shelf://bucket/file.json")
    storage.write_json(place, [1])
    place.store.open()
    calls = []

    def attempt():
        calls.append(None)
        if len(calls) < 2:
            raise OSError("connection reset")
        return storage.read_json(place)

    assert place.store.retried("reading", attempt) == [1]
    assert len(calls) == 2
