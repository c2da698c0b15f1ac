"""A folder of blocks: within its bound, and each fetched once, whatever processes do."""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.files import block_cache
from pipelines.files.block_cache import CLAIM_SUFFIX, COUNT_FILE, BlockCache

BLOCK = 1000


def content(name: str, size: int = BLOCK) -> bytes:
    return random.Random(name).randbytes(size)


def kept(folder: Path) -> dict[str, int]:
    """The bytes of all files of the cache but that of the count."""
    found = {}
    for path in folder.rglob("*"):
        try:
            if path.is_file() and path.name != COUNT_FILE:
                found[str(path.relative_to(folder))] = path.stat().st_size
        except FileNotFoundError:
            continue
    return found


def fetch_failing() -> bytes:
    raise OSError("the store is away")


def unfetched() -> bytes:
    raise AssertionError("it was there")


def test_a_block_for_which_another_leaves_no_room_is_not_kept(tmp_path, monkeypatch):
    """The other is being written, so that it cannot go."""
    cache = BlockCache(tmp_path, 3 * BLOCK // 2)
    write = block_cache._write

    def meanwhile(descriptor, written):
        monkeypatch.setattr(block_cache, "_write", write)
        assert cache.read("b", lambda: content("b")) == content("b")
        write(descriptor, written)

    monkeypatch.setattr(block_cache, "_write", meanwhile)
    assert cache.read("a", lambda: content("a")) == content("a")
    assert kept(tmp_path) == {"a": BLOCK}
    assert cache.read("b", lambda: content("b")) == content("b")
    assert kept(tmp_path) == {"b": BLOCK}


def test_a_part_of_a_block_that_is_there_is_read_from_the_disk(tmp_path):
    cache = BlockCache(tmp_path, 10 * BLOCK)
    assert cache.read("lanes/a", lambda: content("a"), 10, 20) == content("a")[10:20]
    assert cache.read("lanes/a", unfetched) == content("a")
    assert cache.read("lanes/a", unfetched, 990, 2000) == content("a")[990:]
    cache.discard("lanes/a")
    assert cache.read("lanes/a", lambda: b"another") == b"another"
    cache.discard("lanes/none")


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    reads=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 400)), max_size=30),
    most_bytes=st.integers(0, 1500),
    lost=st.sampled_from([None, b"", b"x" * 20, b"7"]),
)
def test_no_order_of_reads_exceeds_the_bound(tmp_path, reads, most_bytes, lost):
    folder = tmp_path / "cache"
    shutil.rmtree(folder, ignore_errors=True)
    cache = BlockCache(folder, most_bytes)
    for turn, (letter, size) in enumerate(reads):
        name = f"{letter}-{size}"
        if lost is not None and turn == len(reads) // 2 and (folder / COUNT_FILE).exists():
            (folder / COUNT_FILE).write_bytes(lost)
        assert cache.read(f"lane/{name}", lambda name=name, size=size: content(name, size)) == (
            content(name, size)
        )
        found = kept(folder)
        assert sum(found.values()) <= most_bytes
        assert not any(path.endswith(CLAIM_SUFFIX) for path in found)
        # Whatever goes, what was read last stays.
        assert (f"lane/{name}" in found) == (size <= most_bytes)


def test_what_was_used_least_recently_goes_first(tmp_path):
    cache = BlockCache(tmp_path, 4 * BLOCK)
    for name in "abcd":
        cache.read(name, lambda name=name: content(name))
    cache.read("a", unfetched)
    cache.read("e", lambda: content("e"))
    assert {"a", "e", "d"} <= set(kept(tmp_path))
    assert "b" not in kept(tmp_path)


def read_all(folder: Path, log: Path, seed: int, blocks: int, most_bytes: int) -> None:
    """Reads all blocks in an order of its own, and notes each that it fetches."""
    cache = BlockCache(folder, most_bytes)
    names = [str(number) for number in range(blocks)]
    random.Random(seed).shuffle(names)
    for name in names:

        def fetch(name: str = name) -> bytes:
            with log.open("a") as file:
                file.write(f"{name}\n")
            time.sleep(0.002)
            return content(name)

        assert cache.read(f"lane/{name}", fetch) == content(name)


def test_processes_fetch_each_block_once(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "cache"
    processes = [
        multiprocessing.get_context("fork").Process(
            target=read_all, args=(folder, log, seed, 60, 10**9)
        )
        for seed in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(log.read_text().split(), key=int) == [str(number) for number in range(60)]
    assert sum(kept(folder).values()) == 60 * BLOCK


def test_processes_keep_to_the_bound_together(tmp_path):
    log, folder, bound = tmp_path / "log", tmp_path / "cache", 10 * BLOCK
    processes = [
        multiprocessing.get_context("fork").Process(
            target=read_all, args=(folder, log, seed, 60, bound)
        )
        for seed in range(4)
    ]
    for process in processes:
        process.start()
    most = 0
    while any(process.is_alive() for process in processes):
        # A file that gets its name while the folder is read may be counted twice, and no others.
        most = max(most, sum(kept(folder).values()))
        time.sleep(0.001)
    assert [process.exitcode for process in processes] == [0] * 4
    assert sum(kept(folder).values()) <= bound
    assert 0 < most <= bound + 4 * BLOCK


def test_a_process_that_is_killed_leaves_nothing_to_wait_for(tmp_path):
    code = """
        import sys, time
        from pathlib import Path
        from pipelines.files.block_cache import BlockCache

        def fetch():
            print("fetching", flush=True)
            time.sleep(600)

        BlockCache(Path(sys.argv[1]), 10**6).read("lane/a", fetch)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert list(kept(tmp_path)) == [f"lane/a{CLAIM_SUFFIX}"]
        process.send_signal(signal.SIGKILL)
    cache = BlockCache(tmp_path, 10**6)
    assert cache.read("lane/a", lambda: content("a")) == content("a")
    assert list(kept(tmp_path)) == ["lane/a"]


def test_what_killed_processes_left_goes_first(tmp_path):
    (tmp_path / "lane").mkdir()
    (tmp_path / "lane" / f"old{CLAIM_SUFFIX}").write_bytes(bytes(5 * BLOCK))
    cache = BlockCache(tmp_path, 2 * BLOCK)
    cache.read("lane/a", lambda: content("a"))
    assert kept(tmp_path) == {"lane/a": BLOCK}


def test_a_failed_fetch_leaves_the_block_to_the_next(tmp_path):
    cache = BlockCache(tmp_path, 10 * BLOCK)
    with pytest.raises(OSError, match="the store is away"):
        cache.read("lane/a", fetch_failing)
    assert kept(tmp_path) == {}
    assert cache.read("lane/a", lambda: content("a")) == content("a")


def test_a_process_that_hangs_is_not_waited_for_forever(tmp_path, caplog):
    (tmp_path / "a.part").touch()
    cache = BlockCache(tmp_path, 10 * BLOCK, wait_seconds=0.1)
    with (tmp_path / f"a{CLAIM_SUFFIX}").open() as held, caplog.at_level(logging.WARNING):
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cache.read("a", lambda: content("a")) == content("a")
    assert "another process holds" in caplog.text


def test_a_folder_that_cannot_be_made_costs_the_cache_alone(tmp_path, caplog):
    (tmp_path / "file").touch()
    cache = BlockCache(tmp_path / "file" / "cache", 10 * BLOCK)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert cache.read("a", lambda: content("a"), 5) == content("a")[5:]
    assert caplog.text.count("cannot keep more blocks") == 1


MOUNT = ("unshare", "--mount", "sh", "-c")


@pytest.mark.skipif(
    subprocess.run(
        [*MOUNT, "mount -t tmpfs tmpfs /mnt"], check=False, capture_output=True
    ).returncode
    != 0,
    reason="this user may not mount a small disk",
)
def test_a_full_disk_gives_blocks_all_the_same(tmp_path):
    """Others fill the disk below the bound: what is old goes, and what has no room is fetched."""
    code = """
        import os, random, sys
        from pathlib import Path
        from pipelines.files.block_cache import BlockCache

        folder = Path(sys.argv[1])
        (folder / "other").write_bytes(bytes(300_000))
        cache = BlockCache(folder / "cache", 10**9)
        content = {str(n): random.Random(n).randbytes(100_000) for n in range(30)}
        for name in content:
            assert cache.read(name, lambda: content[name]) == content[name]
        count = len(list((folder / "cache").iterdir()))
        assert 2 < count < 9, count
        os.truncate(folder / "other", 0)
        with (folder / "other").open("r+b", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
        for name in reversed(content):
            assert cache.read(name, lambda: content[name]) == content[name]
        assert not list((folder / "cache").glob("*.part"))
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        [*MOUNT, f"mount -t tmpfs -o size=1m tmpfs {disk} && {sys.executable} {script} {disk}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
