"""Evaluation sets among the training pairs: what counts as the same, and who remembers it."""

import json
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measured_sets import write_set

from pipelines.evaluation.overlap import (
    Overlap,
    keep_overlap,
    measure_overlap,
    overlap_of_run,
    prepare_overlap,
)
from pipelines.evaluation.sets import digest_sets
from pipelines.files import storage
from pipelines.files.locations import RemotePath
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.settings import Config
from pipelines.settings.load import parse

LONG = "How does one bring a sourdough starter back to life after a long winter in the {}?"
DOCUMENTS = {
    "d1": ("", "Feed it twice a day with flour and water."),
    "d2": ("Tyres", "Between two and three bar, as the side of the tyre says."),
    "d3": ("", "The market fell by three per cent."),
}
QUERIES = {
    "q1": LONG.format("fridge"),
    "q2": "How much air does a tyre need?",
    "q3": "Why did stocks go down?",
    "q4": "Asked by nobody who trains",
}
QRELS = [("q1", "d1", 1), ("q2", "d2", 1), ("q3", "d3", 1), ("q4", "d3", 2)]
SCORED = [
    ("A man plays a flute.", "Someone makes music.", 0.9),
    ("Someone cooks.", "A woman slices an onion.", 0.4),
    ("Two dogs run.", "A cat sleeps.", 0.1),
]


def pair(anchor: str, positive: str | None, *negatives: str) -> dict:
    return {"anchor": anchor, "positive": positive, "negatives": list(negatives) or None}


@pytest.fixture
def folder(tmp_path) -> Path:
    """Sets, and a prepared corpus that has seen some of them."""
    write_set(tmp_path / "users", DOCUMENTS, QUERIES, QRELS)
    with (tmp_path / "sts.jsonl").open("w") as file:
        for first, second, score in SCORED:
            line = {"sentence1": first, "sentence2": second, "score": score}
            file.write(json.dumps(line) + "\n")
    return tmp_path


def write_pairs(folder: Path, *pairs: dict) -> None:
    path = folder / "prepared" / "corpus" / "pairs.parquet"
    path.mkdir(parents=True, exist_ok=True)
    rows = [{"id": place, "group": place, **one} for place, one in enumerate(pairs)]
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("group", pa.int64()),
            ("anchor", pa.string()),
            ("positive", pa.string()),
            ("negatives", pa.list_(pa.string())),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), path / "part-00000.parquet")


def settings(folder: Path, *, near: float | None = 0.0, **evaluation) -> Config:
    """A job that looks for equal texts alone, unless it is said what counts as nearly equal."""
    sets = {"retrieval_sets": [str(folder / "users")], "similarity": [str(folder / "sts.jsonl")]}
    tree = {
        "corpus": {"inputs": [str(folder / "users" / "corpus.jsonl")], "format": "jsonl"},
        "prepared": {"folder": str(folder / "prepared")},
        "run": {"folder": str(folder / "run")},
        "evaluation": sets | evaluation,
    }
    if near is not None:
        tree["corpus"]["near_duplicates"] = near
    return parse(tree)


def counts(spark, config: Config) -> dict[str, tuple[int, ...]]:
    """Of each set: items, those that were seen, relevant pairs, those that were seen."""
    prepare_overlap(config, lambda: spark)
    path = PreparedFolder.of(config).corpus.overlap
    sets = json.loads(path.read_text())["sets"]
    keys = ("items", "seen", "relevant", "seen_relevant")
    assert [one.name for one in path.parent.parent.iterdir()] == ["corpus"]
    return {name: tuple(one[key] for key in keys) for name, one in sets.items()}


def test_queries_and_pairs_are_found_whatever_their_form_and_a_broken_set_is_left_out(
    spark, folder, caplog
) -> None:
    (folder / "labels.csv").write_text(
        "sentence1,sentence2,label\nA man plays a flute.,Someone makes music.,1\nNo,one,0\n"
    )
    write_set(folder / "broken", DOCUMENTS, QUERIES, [])
    same = ["Birds sing.", "Fish swim."]
    alike = [*zip(same, same, strict=True), (LONG.format("fridge"), LONG.format("shed"))]
    lines = [{"sentence1": one, "sentence2": two, "score": len(one)} for one, two in alike]
    (folder / "alike.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    write_pairs(
        folder,
        # One word of many is another, and the document is as it was.
        pair(LONG.format("cellar"), "FEED it twice a day, with flour and water"),
        # Case and marks; as a positive; another document.
        pair("Air, and how much of it", "how much AIR does a tyre need"),
        # Which counts once, in however many pairs it is.
        *[pair(f"Anybody {place}", "How much air does a tyre need?") for place in range(40)],
        # A hard negative was read, too.
        pair("Anything", "else", "Why did stocks go down?"),
        pair("The market fell by three per cent.", None),
        # In the other order; only one side; both sides, in two pairs.
        pair("Someone makes music", "A man plays a flute"),
        pair("Someone cooks.", "He does so every day."),
        pair("Two dogs run.", "Here and there."),
        pair("Nearby", "A cat sleeps."),
        # One text that is like both of a pair is not the pair, as the cellar above is not.
        pair("birds sing", "Here."),
        pair("fish swim", "Fish swim!"),
    )
    config = settings(
        folder,
        # Nearly equal texts count as they do for `exclude`.
        near=0.7,
        retrieval_sets=[str(folder / "users"), str(folder / "broken")],
        similarity=[str(folder / "alike.jsonl")],
        guards=[str(folder / "sts.jsonl")],
        classification=[str(folder / "labels.csv")],
    )
    assert counts(spark, config) == {
        "users": (4, 3, 4, 1),
        "alike": (3, 1, 3, 1),
        "sts": (3, 1, 3, 1),
        "labels": (2, 1, 2, 1),
    }
    assert "broken is not compared with the training pairs: evaluation.retrieval_se" in caplog.text
    assert "sts: 1 of 3 pairs are among the training pairs" in caplog.text


def test_what_has_not_changed_is_not_matched_again_and_a_run_remembers(spark, folder) -> None:
    # Where only equal texts count, the second one is none of the set.
    write_pairs(folder, pair(QUERIES["q3"], "They fell."), pair(LONG.format("cellar"), "Feed it."))
    config = settings(folder, similarity=[str(folder / "st*.jsonl")])
    assert counts(spark, config)["users"] == (4, 1, 4, 0)

    def no_session():
        raise AssertionError("Spark was started")

    prepare_overlap(config, no_session)
    # The files of a glob have changed where there is one more.
    more = folder / "sts-b.jsonl"
    more.write_bytes((folder / "sts.jsonl").read_bytes())
    with pytest.raises(AssertionError, match="Spark was started"):
        prepare_overlap(config, no_session)
    more.unlink()
    prepare_overlap(config, no_session)
    # Nor is anything matched where there is nothing to compare with.
    prepare_overlap(settings(folder, retrieval_sets=[], similarity=[]), no_session)

    run = RunFolder(folder / "run")
    keep_overlap(PreparedFolder.of(config), run)
    # Whatever is prepared there later.
    write_pairs(folder, pair("Nothing", "of them"))
    digests = digest_sets(spark, config)
    known = overlap_of_run(spark, config, run, digests)
    assert known["users"] == Overlap(digests["users"], "queries", 4, 1, 4, 0)
    (pairs,) = known.keys() - {"users"}
    assert asdict(known[pairs])["seen"] == 0
    # Of a set that has changed since nothing is known.
    changed = overlap_of_run(spark, config, run, digests | {"users": "another"})
    assert list(changed) == [pairs]
    write_set(folder / "users", DOCUMENTS, QUERIES | {"q5": "A new one"}, QRELS)
    with pytest.raises(AssertionError, match="Spark was started"):
        prepare_overlap(config, no_session)
    # A folder of an earlier release has no record, nor has a run on it.
    PreparedFolder.of(config).corpus.overlap.unlink()
    keep_overlap(PreparedFolder.of(config), run)
    assert overlap_of_run(spark, config, run, digests) == {}


def test_a_folder_of_the_user_in_a_store_stays(tmp_path):
    folder = RemotePath.parse(f"memory://{tmp_path.name}/prepared")
    notes = folder / "overlap" / "notes.txt"
    storage.write_text(notes, "mine")
    # Without sets nothing is asked of Spark, and what lay aside is removed.
    assert measure_overlap(None, parse({}), [], folder) == {}
    assert notes.is_file() and notes.read_text(encoding="utf-8") == "mine"
