"""Growth: copies that are alike and share nothing, and jobs that are measured whole."""

import bz2
import gzip
import json
import lzma
import re
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import psutil
import pytest
import zstandard
from corpus_factory import write_docstrings
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.compare.processes import Usage, measure_command
from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.lanes.files import LaneManifest
from pipelines.settings.load import load
from pipelines_bench import growth
from pipelines_bench.salted import (
    copy_beginning,
    count_words,
    exchange_windows,
    replacements,
    salt_files,
    salt_line,
)

COPIES = (1, 2, 15)
WIKI = """<doc id="5" url="https://ko.wikipedia.org/wiki?curid=5" title="지미 카터">
지미 카터

제임스 얼 카터 주니어(, 1924년 10월 1일 ~ )는 민주당 출신 미국 39대 대통령이다.
See <ref name="a">the &nbsp; note</ref> at https://example.org/a?b=c, __TOC__ and {{cite}}.
我们在学校学习中文。\x85\u2028ひらがなとカタカナ.
</doc>
"""


def sentences(text: str) -> list[str]:
    """Those with a few words; drawings and tags are the same in all copies."""
    found = re.split(r"(?<=[.!?])\s+|\n\s*\n", text)
    return [one for one in found if "<" not in one and len(re.findall(r"[a-z]{2,}", one)) >= 4]


def jaccard(first: str, second: str) -> float:
    """Of the 5-character shingles, as near duplicates are defined."""
    a, b = ({text[i : i + 5] for i in range(len(text) - 4)} for text in (first, second))
    return len(a & b) / len(a | b)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A folder with the three forms of documents: plain, JSON lines and WikiExtractor's."""
    folder = tmp_path_factory.mktemp("corpus")
    write_docstrings(folder / "docs.jsonl")
    texts = [json.loads(line)["text"] for line in (folder / "docs.jsonl").open()]
    # Each sentence is compared with those of all copies.
    (folder / "plain.txt").write_text("\n\n".join(texts[::4]), encoding="utf-8")
    with gzip.open(folder / "wiki.txt.gz", "wt", encoding="utf-8", newline="") as file:
        file.write(WIKI)
    return folder


@pytest.fixture(scope="module")
def copies(corpus, tmp_path_factory) -> dict[int, Path]:
    """Folders of a few copies by number; 0 is the corpus itself."""
    files = sorted(corpus.iterdir())
    words: Counter[str] = Counter()
    for file in files:
        words.update(count_words(file)[0])
    windows = exchange_windows(words)
    folders = {0: corpus}
    for copy in COPIES:
        folders[copy] = tmp_path_factory.mktemp(f"copy-{copy}")
        salt_files(files, [folders[copy] / file.name for file in files], windows, copy)
    return folders


def test_copies_share_no_sentence_and_nothing_near(copies) -> None:
    texts = {
        copy: sentences((folder / "plain.txt").read_text(encoding="utf-8"))
        for copy, folder in copies.items()
    }
    distinct = {copy: set(found) for copy, found in texts.items()}
    for one, other in combinations(copies, 2):
        assert not distinct[one] & distinct[other]
        # The same place of two copies is where they would be nearest.
        for first, second in zip(texts[one], texts[other], strict=False):
            assert jaccard(first, second) < 0.5
    sample = [(copy, text) for copy, found in texts.items() for text in found[::40]]
    for (one, first), (other, second) in combinations(sample, 2):
        if one != other:
            assert jaccard(first, second) < 0.5


def test_copies_are_alike_in_what_costs_time(copies) -> None:
    original = (copies[0] / "plain.txt").read_text(encoding="utf-8")
    repeated = Counter(sentences(original))
    for copy in COPIES:
        text = (copies[copy] / "plain.txt").read_text(encoding="utf-8")
        # Everything but words is as it was, and words are as long as they were.
        assert re.sub(r"[^\W_]", "a", text) == re.sub(r"[^\W_]", "a", original)
        assert len(set(sentences(text))) == pytest.approx(len(repeated), rel=0.01)


def test_forms_are_kept(copies) -> None:
    originals = [json.loads(line) for line in (copies[0] / "docs.jsonl").open()]
    for copy in COPIES:
        found = [json.loads(line) for line in (copies[copy] / "docs.jsonl").open()]
        assert [set(row) for row in found] == [set(row) for row in originals]
        assert [len(row["text"]) for row in found] == [len(row["text"]) for row in originals]
        with gzip.open(copies[copy] / "wiki.txt.gz", "rt", encoding="utf-8", newline="") as file:
            wiki = file.read()
        assert len(wiki.split("\n")) == len(WIKI.split("\n"))
        tag = re.fullmatch(
            r'<doc id="(\d+)" url="(\S+)" title="(\w\w) (\w\w)">', wiki.split("\n")[0]
        )
        assert (tag[1], tag[2]) == (
            f"{copy}0000000005",
            f"https://ko.wikipedia.org/wiki?curid=5&copy={copy}",
        )
        assert wiki.split("\n")[1] == f"{tag[3]} {tag[4]}"
        for kept in (
            '<ref name="a">',
            "&nbsp;",
            "</ref>",
            " https://",
            "</doc>\n",
        ):
            assert kept in wiki
        assert "我们在学校学习中文" not in wiki


WORDS = st.text(st.sampled_from("abcdEFG019é가나中の"), min_size=1, max_size=4)


@settings(max_examples=25)
@given(st.dictionaries(WORDS, st.integers(1, 99), max_size=300), st.integers(1, 15))
def test_a_copy_permutes_the_words(words: dict[str, int], copy: int) -> None:
    windows = exchange_windows(words)
    changed = replacements(windows, copy)
    assert sorted(changed) == sorted(changed.values()) == sorted(words)
    for word, other in changed.items():
        assert len(word) == len(other)
        assert word.islower() == other.islower()
        assert word.isdigit() == other.isdigit()
    assert exchange_windows(dict(reversed(words.items()))) == windows


@given(st.integers(16, 400), st.integers(0, 15), st.integers(0, 15))
def test_no_two_copies_agree_in_a_word(count: int, one: int, other: int) -> None:
    words = {f"{number:04}": 1 for number in range(count)}
    windows = exchange_windows(words)
    first, second = (replacements(windows, copy) for copy in (one, other))
    assert all((first[word] == second[word]) == (one == other) for word in words)
    assert max(map(len, windows)) < 100


@given(st.text(max_size=80))
def test_any_line_is_copied_as_it_is_without_words(line: str) -> None:
    if not line.startswith("{"):
        assert salt_line(line, {}, 0).encode("utf-8", "surrogatepass") == line.encode(
            "utf-8", "surrogatepass"
        )


@settings(max_examples=15)
@given(st.dictionaries(st.text(), st.recursive(st.text() | st.integers(), st.lists)))
def test_json_stays_json(value: dict) -> None:
    line = json.dumps(value) + "\r\n"
    copied = salt_line(line, {}, 3)
    assert copied.endswith("}\r\n")
    found = json.loads(copied)
    assert {**found, "id": 0, "url": 0} == {**value, "id": 0, "url": 0} or set(value) & {
        "id",
        "url",
    }


@pytest.mark.parametrize(
    ("suffix", "module"),
    [(".gz", gzip), (".bz2", bz2), (".xz", lzma), (".zst", zstandard), ("", None)],
)
def test_packing_sizes_and_bad_bytes_are_kept(tmp_path, suffix, module) -> None:
    # Not UTF-8, a lone carriage return, and no line end at the end.
    content = b"caf\xe9 one\r\ntwo\rthree \xf0\x9f\x98\x80\n{broken\nend"
    source, target, short = (tmp_path / f"{name}{suffix}" for name in ("a.txt", "b.txt", "c.txt"))
    with module.open(source, "wb") if module else source.open("wb") as file:
        file.write(content)
    words, size = count_words(source)
    assert set(words) == {"caf", "one", "two", "three", "broken", "end"}
    assert salt_files([source], [target], [("one", "two")], 1) == size == len(content)
    with module.open(target, "rb") if module else target.open("rb") as file:
        assert file.read() == content.replace(b"one", b"?").replace(b"two", b"one").replace(
            b"?", b"two"
        )
    assert copy_beginning(source, short, 3) == content.index(b"\n") + 1


def run(code: str, deadline: float = 60.0) -> Usage:
    return measure_command([sys.executable, "-c", code], environment={}, deadline_seconds=deadline)


def test_memory_is_of_the_command_and_its_children_alone() -> None:
    hold = "import time; held = b'x' * {size}; time.sleep(4)"
    grandchild = hold.format(size=300_000_000)
    child = (
        f"import subprocess, sys; held = b'x' * 100_000_000;"
        f"subprocess.run([sys.executable, '-c', {grandchild!r}])"
    )
    usage = run(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
    assert 100_000_000 < usage.driver_bytes < 250_000_000
    assert usage.seconds >= 4


def test_cpu_time_of_a_child_that_has_ended_counts() -> None:
    work = "import time\nwhile time.process_time() < 1: pass"
    child = f"subprocess.run([sys.executable, '-c', {work!r}])"
    code = f"import subprocess, sys, time; {child}; time.sleep(3)"
    # What is spent between the last look and the end is not seen.
    assert 0.4 < run(code).cpu_seconds < 3


def test_a_command_that_fails_or_lasts_is_an_error_and_leaves_nothing(tmp_path) -> None:
    with pytest.raises(PipelineError, match="code 7"):
        run("raise SystemExit(7)")
    note = tmp_path / "pid"
    child = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(99)"
    code = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]);"
        "time.sleep(99)"
    )
    with pytest.raises(PipelineError, match="did not end within 3 s"):
        run(code, deadline=3)
    if note.exists() and psutil.pid_exists(pid := int(note.read_text())):
        # Ended, but nobody has asked how.
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_documents_unless_another_format_is_set() -> None:
    corpus = growth.growth_config(load()).corpus
    assert (corpus.format, corpus.pairs, corpus.evaluation_share) == ("documents", "adjacent", 0)
    assert corpus.near_duplicates is None
    own = load(None, ["corpus.format=text", "corpus.inputs=[a]"])
    assert growth.growth_config(own) == own


@pytest.mark.parametrize(
    ("overrides", "data", "key"),
    [
        ([], None, "--data"),
        (["corpus.format=parquet", "corpus.inputs=[a]"], ".", "corpus.format"),
        ([], "absent", "--data"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, overrides, data, key) -> None:
    config = load(None, [*overrides, f"prepared.folder={tmp_path / 'out' / 'prepared'}"])
    with pytest.raises(InputError) as error:
        growth.measure(config, None if data is None else str(tmp_path / data))
    assert error.value.key == key
    assert not any(tmp_path.iterdir())


def prepared_by_nobody(seen: list):
    """Stands in for the job: reads its configuration, and leaves what a job leaves."""

    def measured(command, *, environment, deadline_seconds) -> Usage:
        config = load(command[-1])
        size = sum(Path(file).stat().st_size for file in config.corpus.inputs)
        seen.append((config, size))
        folder = Path(config.prepared.folder)
        assert not folder.exists()
        assert not [key for key in environment if key.startswith("PYSPARK_GATEWAY")]
        LaneManifest(
            lanes=1, granule=2, rows=size, rows_per_part=size, segments=(), examples=2 * size,
            left_over={}, granules_per_step=1, same_group_in_step=0, tokens=1, slots=1,
            vocabulary=9, max_length=8, paired=True, negatives=0, scored=False,
            candidates_scored=False, teacher=None, checksums=("0" * 16,),
        ).save(folder / "lanes")  # fmt: skip
        stages = [{"stage": "corpus", "seconds": 1.0, "kept": False}]
        storage.write_json(folder / "stages.json", stages)
        times = len(seen) - 1
        return Usage(
            seconds=[9.0, 10.0, 20.0, 80.0][times], cpu_seconds=8.0, driver_bytes=10**8, own_bytes=1
        )

    return measured


def test_each_size_is_a_job_of_its_own(corpus, tmp_path, monkeypatch, capsys) -> None:
    seen: list = []
    monkeypatch.setattr(growth, "measure_command", prepared_by_nobody(seen))
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    folder = tmp_path / "prepared"
    figures = growth.measure(load(None, [f"prepared.folder={folder}"]), str(corpus))
    configs = [config for config, _ in seen]
    # `docs.jsonl` is no document.
    assert [len(config.corpus.inputs) for config in configs] == [1, 2, 8, 32]
    assert all(len(set(config.corpus.inputs)) == len(config.corpus.inputs) for config in configs)
    assert not any(config.prepared.reuse for config in configs)
    assert {config.corpus.format for config in configs} == {"documents"}
    sizes = figures["sizes"]
    assert sizes["16x"]["megabytes"] == pytest.approx(16 * sizes["1x"]["megabytes"], rel=0.01)
    assert sizes["4x"]["stage_seconds"] == {"corpus": 1.0}
    assert sizes["1x"]["examples"] == 2 * seen[1][1]
    assert figures["time_per_mb_ratio_16x"] == pytest.approx(0.5, rel=0.01)
    assert figures["cpu_per_mb_ratio_16x"] == pytest.approx(1 / 16, rel=0.01)
    assert figures["driver_memory_ratio_16x"] == 1
    assert figures["start_seconds"] == 9
    json.dumps(figures)
    assert [path.name for path in tmp_path.iterdir()] == ["prepared"]
    assert (folder / "growth.svg").read_text().startswith("<svg xmlns")
    assert "growth.svg" in capsys.readouterr().out


def test_a_job_that_fails_leaves_nothing(corpus, tmp_path, monkeypatch) -> None:
    good = prepared_by_nobody([])

    def failing(command, **limits) -> Usage:
        if len(load(command[-1]).corpus.inputs) > 2:
            raise PipelineError("it ended with code 1")
        return good(command, **limits)

    monkeypatch.setattr(growth, "measure_command", failing)
    config = load(None, [f"prepared.folder={tmp_path / 'prepared'}"])
    with pytest.raises(PipelineError, match="the job on 4x, it ended with code 1"):
        growth.measure(config, str(corpus))
    assert not any(tmp_path.iterdir())
