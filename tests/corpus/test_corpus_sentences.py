"""Documents to pairs of sentences: duplicates, what is excluded, quarantine, statistics."""

import json
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
from corpus_runs import dropped, pairs_of, prepared, sides_of

from pipelines.corpus.funnel import check_adds_up
from pipelines.errors import InputError

OPENING = "The harbour of the old town was closed to all ships in the winter of that year."
SENTENCES = (
    OPENING,
    "Nobody had expected the ice to come so early, least of all the pilots.",
    "They stood on the pier in their heavy coats and looked out over the bay.",
    "A fisherman told them that his grandfather had seen the same thing once.",
    "Then the wind turned to the south and brought rain for eleven days.",
)
NEAR = OPENING.replace("that year", "this year")
MASTER = "Every harbour has a master who keeps its books."
OFFICE = "It is an office that is often handed down from one to the next."


def write_documents(folder):
    (folder / "a.md").write_text("# The harbour\n\n" + " ".join(SENTENCES) + "\n")
    (folder / "wiki_00").write_text(
        '<doc id="1" url="x" title="Only a title">\nOnly a title\n\n</doc>\n'
        '<doc id="2" url="x" title="Harbours">\nHarbours\n\n'
        f"{NEAR} {SENTENCES[3].upper()} {MASTER}\n{OFFICE}\n</doc>\n"
    )
    return {"inputs": [str(folder)], "format": "documents", "evaluation_share": 0}


def lines(summary):
    return {(line.level, line.kind, line.name): line.rows for line in summary.funnel}


@pytest.fixture(scope="module")
def adjacent(spark, tmp_path_factory):
    """The documents, and what their neighbouring sentences give."""
    folder = tmp_path_factory.mktemp("adjacent")
    documents = folder / "documents"
    documents.mkdir()
    return documents, prepared(spark, folder, **write_documents(documents), pairs="adjacent")


def test_neighbours_of_one_document_are_paired(adjacent):
    _, summary = adjacent
    found = sides_of(summary)
    # The fisherman's sentence stands twice: one of the two goes, and its neighbours part.
    assert len(found & set(pairwise(SENTENCES))) >= 2
    assert (MASTER, OFFICE) in found
    counted = lines(summary)
    assert counted["sentences", "dropped", "duplicate"] == 1
    assert counted["rows", "dropped", "no prose"] == 1
    check_adds_up(summary.funnel)


def test_near_duplicates_are_dropped_once(adjacent):
    _, summary = adjacent
    assert dropped(summary)["near duplicate"] == 1
    texts = {text for pair in sides_of(summary) for text in pair}
    assert len(texts & {OPENING, NEAR}) <= 1


def test_pairs_that_share_a_sentence_are_of_one_group(adjacent):
    _, summary = adjacent
    group_of = {}
    for row in pairs_of(summary):
        for text in (row["anchor"], row["positive"]):
            assert group_of.setdefault(text, row["group"]) == row["group"]
    assert len(set(group_of.values())) == 2


def test_evaluation_sentences_and_near_ones_are_removed(spark, tmp_path):
    exclude = tmp_path / "test.csv"
    nearly = SENTENCES[2].replace("heavy coats", "heavy coat")
    exclude.write_text(f'sentence1,sentence2\n"{SENTENCES[1].lower()}","{nearly}"\n')
    documents = tmp_path / "documents"
    documents.mkdir()
    summary = prepared(
        spark,
        tmp_path,
        **write_documents(documents),
        pairs="single",
        sentences=True,
        exclude=[str(exclude)],
    )
    counted = dropped(summary)
    assert counted["in corpus.exclude"] == counted["nearly in corpus.exclude"] == 1
    texts = {anchor for anchor, _ in sides_of(summary)}
    assert not texts & {SENTENCES[1], SENTENCES[2]}
    assert SENTENCES[4] in texts


def test_titles_with_first_paragraphs(spark, tmp_path):
    summary = prepared(spark, tmp_path, **write_documents(tmp_path), pairs="title")
    assert {anchor for anchor, _ in sides_of(summary)} == {"The harbour", "Harbours"}
    assert dropped(summary) == {"no prose": 1}


def test_triplets_and_their_scores(spark, tmp_path):
    texts, scores = ("a", "p", "n", "m"), ("of_p", "of_n", "of_m")
    given = [-3.5, 1e30, 0.25]
    rows = [
        dict(zip(texts, SENTENCES[number : number + 4], strict=True))
        | dict(zip(scores, given, strict=True))
        for number in range(2)
    ]
    rows.append(rows[0] | {"m": None})
    rows += [rows[0] | {"of_n": score} for score in (None, "much", "nan", 1e300)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    summary = prepared(
        spark,
        tmp_path,
        inputs=[str(tmp_path / "a.jsonl")],
        format="jsonl",
        pairs="triplets",
        triplet_columns=texts,
        score_columns=scores,
        evaluation_share=0,
    )
    written = pairs_of(summary)
    triplets = {(row["anchor"], row["positive"], *row["negatives"]) for row in written}
    assert triplets == {SENTENCES[number : number + 4] for number in range(2)}
    assert [row["candidate_scores"] for row in written] == [np.float32(given).tolist()] * 2
    assert dropped(summary) == {"no text": 1, "no score": 4}


def test_quarantine_and_its_limit(spark, tmp_path):
    rows = [json.dumps({"text": f"{SENTENCES[n % 5]} Number {n}."}) for n in range(199)]
    rows.insert(77, '{"text": "cut of')
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    corpus = {
        "inputs": [str(tmp_path / "a.jsonl")],
        "format": "jsonl",
        "pairs": "single",
        "near_duplicates": 0,
    }
    summary = prepared(spark, tmp_path, **corpus)
    (place,) = pq.read_table(summary.folder / "quarantine.parquet").to_pylist()
    assert place["file"].endswith("a.jsonl") and place["rows"] == 1
    assert place["offset"] == len("\n".join(rows[:77])) + 1
    assert place["excerpt"] == '{"text": "cut of'
    assert summary.quarantined == 1
    counted = lines(summary)
    assert counted["rows", "in", "rows read"] == 200
    assert [rows for (_, kind, _), rows in counted.items() if kind == "quarantined"] == [1]
    check_adds_up(summary.funnel)
    told = json.loads((summary.folder / "statistics.json").read_text())
    assert told["quarantine"][0]["offset"] == place["offset"]
    assert told["bytes"] == (tmp_path / "a.jsonl").stat().st_size
    with pytest.raises(
        InputError, match=r"1 of 200 rows cannot be read, the first in .*a.jsonl"
    ) as raised:
        prepared(spark, tmp_path, **corpus, max_quarantined=0.001)
    assert raised.value.key == "corpus.max_quarantined"


def test_statistics_hold_examples_of_what_was_dropped(adjacent):
    documents, summary = adjacent
    told = json.loads((summary.folder / "statistics.json").read_text())
    assert told["examples"]["rows"]["no prose"] == ["Only a title"]
    assert told["examples"]["paragraphs"]["title line"]
    assert set(told["languages"]) <= {"en", "und"}
    assert told["bytes"] == sum(path.stat().st_size for path in documents.iterdir())
