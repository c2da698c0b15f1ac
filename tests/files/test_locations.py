"""Places in stores answer as paths do."""

import hashlib
import io
import os
import pickle
import re
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.readers.streams import DECOMPRESSORS
from pipelines.errors import DamagedFileError, InputError
from pipelines.files import copies, storage, versions
from pipelines.files.locations import (
    SUFFIXES,
    RemotePath,
    fixed_folder,
    is_compressed,
    location,
    plain_suffix,
)
from pipelines.settings import StorageSettings

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1).filter(
    lambda name: name not in (".", "..")
)


@pytest.fixture
def root(request):
    """A folder of fsspec's store in memory, for what needs no server."""
    return RemotePath.parse(f"memory://{request.node.name.replace('[', '-')}")


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_names_and_parents_are_those_of_paths(parts):
    path = PurePosixPath(*parts)
    remote = RemotePath.parse("s3://bucket").joinpath(*parts)
    for name in ("name", "stem", "suffix", "suffixes"):
        assert getattr(remote, name) == getattr(path, name)
    assert [str(parent.key) for parent in remote.parents] == [str(one) for one in path.parents]
    assert remote.relative_to(RemotePath.parse("s3://bucket")) == path
    assert remote.parent / remote.name == remote


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [("a/b*/c", "a"), ("a/**/*.txt", "a"), ("[ab]", ""), ("a/b", "a/b")],
)
def test_what_is_above_the_first_wildcard_is_the_fixed_folder(pattern, folder):
    assert fixed_folder(Path("/") / pattern) == Path("/") / folder
    root = RemotePath.parse("s3://bucket")
    assert fixed_folder(root / pattern) == (root / folder if folder else root)


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_an_address_is_what_it_says(parts):
    remote = RemotePath.parse("gs://bucket").joinpath(*parts)
    assert RemotePath.parse(str(remote)) == remote == pickle.loads(pickle.dumps(remote))


def test_a_setting_is_a_path_or_an_address():
    assert location("/data/x").name == "x"
    options = StorageSettings(s3_region="eu-north-1")
    found = location("S3://bucket//data/x/", options)
    assert (str(found), found.store.options) == ("s3://bucket/data/x", options)
    assert found.is_relative_to(location("s3://bucket/data"))
    assert not found.is_relative_to(location("s3://bucket/dat"))
    with pytest.raises(ValueError, match="is no address"):
        RemotePath.parse("s3://bucket/../x")
    with pytest.raises(ValueError, match="is not below"):
        found.relative_to(location("s3://other"))


def test_what_is_there_and_what_is_not(root):
    assert not root.exists()
    assert list(root.iterdir()) == []
    storage.write_text(root / "a" / "b.txt", "text")
    assert (root / "a").is_dir()
    assert not (root / "a").is_file()
    assert (root / "a" / "b.txt").is_file()
    assert (root / "a" / "b.txt").stat().st_size == 4
    for missing in (root / "a" / "b", root / "a" / "b.txt.gz"):
        assert not missing.exists()
        missing.unlink(missing_ok=True)
        with pytest.raises(FileNotFoundError):
            missing.read_bytes()
        with pytest.raises(FileNotFoundError):
            missing.stat()
        with pytest.raises(FileNotFoundError):
            missing.unlink()


def test_patterns_match_as_those_of_folders(root, tmp_path):
    names = ("a.csv", "b.txt", "x/a.csv", "x/y/a.csv", "x/y/.b", "z-1/part-00000.parquet")
    for name in names:
        storage.write_text(root / name, name)
        storage.write_text(tmp_path / name, name)
    for pattern in ("*.csv", "*/*.csv", "**/*.csv", "x/*", "x/**/*.csv", "z-*/part-*", "nothing*"):
        found = {str(path.relative_to(root)) for path in root.glob(pattern)}
        assert found == {str(path.relative_to(tmp_path)) for path in tmp_path.glob(pattern)}
    assert {p.name for p in root.rglob("*.csv")} == {"a.csv"}
    assert storage.file_names(root) == storage.file_names(tmp_path)
    assert storage.digest_folder(root) == storage.digest_folder(tmp_path)


@given(st.binary(max_size=200), st.integers(0, 220), st.integers(0, 220), st.integers(1, 64))
def test_a_file_reads_as_one_on_disk(content, place, size, buffering):
    path = RemotePath.parse("memory://ranges/file")
    versions.put_bytes(path, content)
    plain = io.BytesIO(content)
    with path.open("rb", buffering=buffering) as file:
        assert file.seek(place) == plain.seek(place)
        assert file.read(size) == plain.read(size)
        assert file.read() == plain.read()
        assert file.seek(0, io.SEEK_END) == len(content)
    with path.open("rb", buffering=0) as file:
        assert hashlib.file_digest(file, "sha256").digest() == hashlib.sha256(content).digest()


def test_text_is_read_by_lines(root):
    storage.write_text(root / "lines", "eins\nzwei\nür")
    with (root / "lines").open() as lines:
        assert list(lines) == ["eins\n", "zwei\n", "ür"]
    with pytest.raises(io.UnsupportedOperation, match="is not written in place"):
        (root / "lines").open("ab")


class TestFolders:
    def test_an_error_leaves_what_was_there(self, root):
        with storage.new_folder(root / "stage") as folder:
            storage.write_text(folder / "whole", "1")
        before = list(root.rglob("*"))

        def fail():
            with storage.new_folder(root / "stage") as folder:
                storage.write_text(folder / "half", "x")
                raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            fail()
        assert list(root.rglob("*")) == before
        assert storage.file_names(versions.current(root / "stage")) == ["whole"]

    def test_the_one_before_stays_for_its_readers(self, root):
        seen = []
        for number in range(4):
            with storage.built_folder(root / "stage") as folder:
                (folder / "file").write_text(str(number))
            seen.append(versions.current(root / "stage"))
        readable = [version for version in seen if version.exists()]
        assert readable == seen[-2:]
        assert [(version / "file").read_text() for version in readable] == ["2", "3"]

    @pytest.mark.parametrize(
        "content", ['["../other"]', '["a b", 1]', "{}", "[", "\\ud800"], ids=str
    )
    def test_a_pointer_that_names_no_version_is_damaged(self, root, content):
        with storage.built_folder(root / "stage") as folder:
            (folder / "file").write_text("whole")
        pointer = root / "stage" / versions.POINTER
        versions.put_bytes(pointer, content.encode())
        said = f"^{re.escape(str(pointer))} is damaged "
        with pytest.raises(DamagedFileError, match=said):
            versions.current(root / "stage")
        # Nor is anything removed by it.
        with pytest.raises(DamagedFileError, match=said):
            storage.sweep(root)
        assert [path.read_text() for path in root.rglob("file")] == ["whole"]

    def test_a_version_knows_its_folder(self, root):
        with storage.built_folder(root / "stage") as folder:
            (folder / "file").write_text("first")
        with storage.built_folder(versions.current(root / "stage")) as folder:
            (folder / "file").write_text("second")
        assert (versions.current(root / "stage") / "file").read_text() == "second"
        storage.remove_folder(versions.current(root / "stage"))
        assert not (root / "stage").exists()

    def test_a_place_may_be_given_once(self, root):
        with storage.built_folder(root / "one", replace=False) as folder:
            (folder / "file").write_text("first")
        with (
            pytest.raises(FileExistsError),
            storage.built_folder(root / "one", replace=False) as folder,
        ):
            (folder / "file").write_text("second")
        assert (versions.current(root / "one") / "file").read_text() == "first"

    def test_what_killed_processes_left_is_swept(self, root):
        with storage.built_folder(root / "stage") as folder:
            (folder / "file").write_text("whole")
        versions.put_bytes(root / "stage" / "0123456789ab-1-1-89abcdef" / "half", b"x")
        versions.put_bytes(root / "new" / "0123456789ab-1-1-89abcdef" / "half", b"x")
        versions.put_bytes(root / "other" / "name", b"stays")
        storage.sweep(root)
        assert (versions.current(root / "stage") / "file").read_text() == "whole"
        assert storage.file_names(root / "other") == ["name"]
        assert "half" not in {path.name for path in root.rglob("*")}

    def test_folders_are_copied_between_all_places(self, root, tmp_path):
        source = tmp_path / "source"
        storage.write_text(source / "a" / "b", "text")
        places = (source, root / "first", root / "second", tmp_path / "target")
        for here, there in pairwise(places):
            storage.copy_folder(here, there)
            assert storage.digest_folder(there) == storage.digest_folder(source)
            storage.link_or_copy(here / "a" / "b", there.with_name(f"{there.name}.file"))
            assert there.with_name(f"{there.name}.file").read_text() == "text"
            assert storage.signs_of_life(there.parent)
        storage.move_folder(root / "second", root / "third")
        assert not (root / "second").exists()
        assert storage.digest_folder(root / "third") == storage.digest_folder(source)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_of_another_user_is_no_cache(tmp_path, monkeypatch):
    """To a folder of this user, into which copies would be written, and from which deleted."""
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    link = tmp_path / f"sentence-pipelines-{os.getuid()}"
    link.symlink_to(own)
    os.lchown(link, 12345, 12345)
    monkeypatch.setattr(copies, "gettempdir", lambda: str(tmp_path))
    with pytest.raises(InputError, match="other users can write to"):
        copies.cache_folder(StorageSettings())
    link.unlink()
    assert copies.cache_folder(StorageSettings()) == link
    link.chmod(0o777)
    with pytest.raises(InputError, match="other users can write to"):
        copies.cache_folder(StorageSettings())


class TestCopies:
    @pytest.fixture
    def place(self, root, tmp_path):
        options = StorageSettings(cache_folder=str(tmp_path / "copies"))
        return RemotePath.parse(str(root), options) / "model"

    def test_a_version_is_copied_once(self, place):
        with storage.built_folder(place) as folder:
            (folder / "weights").write_text("first")
        copy = copies.local_folder(place)
        assert (copy / "weights").read_text() == "first"
        storage.discard_folder(versions.current(place) / "weights")
        assert copies.local_folder(place) == copy
        with storage.built_folder(place) as folder:
            (folder / "weights").write_text("second")
        assert (copies.local_folder(place) / "weights").read_text() == "second"
        assert (copy / "weights").read_text() == "first"

    def test_a_plain_folder_is_copied_again_when_it_changes(self, place):
        storage.write_text(place / "weights", "first")
        assert (copies.local_folder(place) / "weights").read_text() == "first"
        storage.write_text(place / "weights", "second, longer")
        assert (copies.local_folder(place) / "weights").read_text() == "second, longer"

    def test_a_copy_that_fails_leaves_nothing(self, place, tmp_path):
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            copies.local_folder(place)
        storage.write_text(place / "weights", "bad")

        def refuse(copy):
            raise ValueError((copy / "weights").read_text())

        with pytest.raises(ValueError, match="bad"):
            copies.local_folder(place, refuse)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    def test_copies_that_nobody_asks_for_go(self, place, monkeypatch):
        monkeypatch.setattr(copies, "UNUSED_SECONDS", -1.0)
        storage.write_text(place / "weights", "first")
        first = copies.local_folder(place)
        storage.write_text(place / "weights", "second, longer")
        copies.local_folder(place)
        assert not first.exists()


@pytest.mark.parametrize(
    ("name", "compressed", "suffix"),
    [("a.TXT.gz", True, ".txt"), ("b.csv", False, ".csv"), ("c.ZST", True, ""), ("d", False, "")],
)
def test_the_name_says_what_is_compressed(name, compressed, suffix):
    assert is_compressed(Path(name)) == compressed
    assert plain_suffix(Path(name)) == suffix


def test_each_compression_has_a_reader():
    assert set(DECOMPRESSORS) == set(SUFFIXES)
