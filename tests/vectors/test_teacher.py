"""The vectors of a teacher: from the texts of a corpus to the granules of its lanes."""

import datetime
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import InputError
from pipelines.jobs.prepare import STAGES, tokenise
from pipelines.lanes.files import TeacherVectors
from pipelines.lanes.reader import LaneReader
from pipelines.lanes.stage import prepare_lanes
from pipelines.models.inference.embedder import load_embedder
from pipelines.settings.load import parse
from pipelines.tokens.start import PROMPTS_FILE
from pipelines.vectors.embed import embed_table
from pipelines.vectors.nearest import unit_length
from pipelines.vectors.teacher import (
    check_lanes_of_teacher,
    check_teacher,
    prepare_teacher,
    teacher_digest,
)

EXAMPLES = 40


def write_corpus(folder: Path, texts: list[str], negatives: int, token: str = "first") -> None:
    """Pairs of texts, each with others for hard negatives; every text is there several times."""
    numbers = range(EXAMPLES)
    lists = [[texts[(n + 2 + place) % EXAMPLES] for place in range(negatives)] for n in numbers]
    schema = {
        "id": pa.int64(),
        "group": pa.int64(),
        "anchor": pa.string(),
        "positive": pa.string(),
        "negatives": pa.list_(pa.string()),
        "score": pa.float32(),
        "candidate_scores": pa.list_(pa.float32()),
    }
    columns = {
        "id": [7 * n for n in numbers],
        "group": [*numbers],
        "anchor": texts[:EXAMPLES],
        "positive": [texts[(n + 1) % EXAMPLES] for n in numbers],
        "negatives": lists if negatives else [None] * EXAMPLES,
        "score": [None] * EXAMPLES,
        "candidate_scores": [None] * EXAMPLES,
    }
    pairs = folder / "corpus" / "pairs.parquet"
    shutil.rmtree(folder / "corpus", ignore_errors=True)
    pairs.mkdir(parents=True)
    pq.write_table(pa.table(columns, schema=pa.schema(schema)), pairs / "part-0.parquet")
    (folder / "corpus" / "stage.json").write_text(json.dumps({"fingerprint": token}))


@pytest.fixture
def settings(tmp_path):
    def make(embedding=None, **teacher):
        return parse(
            {
                "embedding": embedding or {},
                "prepared": {"folder": str(tmp_path / "prepared")},
                "tokens": {"max_length": 24},
                "lanes": {"count": 2, "granule": 10},
                "training": {"granules_per_step": 2},
                "teacher": teacher,
            }
        )

    return make


@pytest.fixture(scope="session")
def asking_model(small_model, tmp_path_factory) -> Path:
    """The small model, with a prompt for queries and another for documents."""
    folder = tmp_path_factory.mktemp("asking") / "model"
    shutil.copytree(small_model, folder)
    prompts = {"prompts": {"query": "ask: ", "document": "say: "}, "default_prompt_name": None}
    (folder / PROMPTS_FILE).write_text(json.dumps(prompts))
    return folder


@pytest.fixture(scope="session")
def texts(lines) -> list[str]:
    """Lines as the corpus stage would have them."""
    return [line for line in lines if "  " not in line]


def texts_by_id(folder: Path) -> dict[int, list[str]]:
    rows = pq.read_table(folder / "corpus" / "pairs.parquet").to_pylist()
    return {row["id"]: [row["anchor"], row["positive"], *(row["negatives"] or [])] for row in rows}


def told(caplog) -> list[str]:
    return [line.getMessage() for line in caplog.records if "embedding: " in line.getMessage()]


def test_lanes_hold_the_vectors_of_every_side(
    spark, settings, asking_model, texts, tmp_path, caplog, monkeypatch
):
    caplog.set_level(logging.INFO, "pipelines")
    computed = {"backend": "torch", "precision": "fp32", "batch_tokens": 77}
    folder, config = tmp_path / "prepared", settings(computed, model=str(asking_model))
    asked = []

    def embed(session, config):
        asked.append(config.embedding.model_dump(include=set(computed)))
        return embed_table(session, config)

    monkeypatch.setattr("pipelines.vectors.teacher.embed_table", embed)
    write_corpus(folder, texts, negatives=2)
    tokenise(spark, config)
    summary = prepare_teacher(spark, config)
    # Each as a query and as a document.
    assert (summary.examples, summary.texts, summary.width) == (EXAMPLES, 2 * EXAMPLES, 32)
    # As the section `embedding` says.
    assert asked == [computed] * 2
    for name in ("queries", "documents"):
        manifest = folder / "teacher_texts" / name / "vectors" / "_manifest.json"
        made = json.loads(manifest.read_text())
        assert (made["backend"], made["precision"]) == ("torch", "fp32")
    manifest = prepare_lanes(spark, config)
    assert manifest.teacher == TeacherVectors(
        width=32, precision="fp16", source=teacher_digest(config)
    )
    embedder = load_embedder(asking_model)
    wanted = texts_by_id(folder)
    reader = LaneReader(folder / "lanes", manifest, teacher=manifest.teacher)
    without = LaneReader(folder / "lanes", manifest, ["anchor"])
    for address, batch in reader:
        granule = reader.granule(address)
        assert [*granule.teacher] == [*manifest.sides] == [*granule.sides]
        rows = [wanted[number] for number in batch.column("id").to_pylist()]
        for place, (name, vectors) in enumerate(granule.teacher.items()):
            embed = embedder.queries if place == 0 else embedder.documents
            expected = unit_length(embed([row[place] for row in rows]))
            # Of other precision, and of batches of other sizes.
            np.testing.assert_allclose(vectors, expected, atol=0.02, err_msg=name)
            assert (vectors * expected).sum(axis=1).min() > 0.999
        assert without.granule(address).teacher == {}

    # Of a corpus that has changed, the new texts alone are embedded.
    caplog.clear()
    write_corpus(folder, [*texts[:30], *texts[50:60]], negatives=2, token="second")
    assert prepare_teacher(spark, config).texts == 2 * EXAMPLES
    assert [line.split()[1:3] for line in told(caplog) if "sentences/s" in line] == [
        ["10", "rows"]
    ] * 2

    check_lanes_of_teacher(config, manifest.teacher)
    with pytest.raises(InputError, match=r"^teacher\.model: .* vectors of another teacher"):
        check_lanes_of_teacher(settings(model=str(asking_model), dimensions=8), manifest.teacher)
    with pytest.raises(InputError, match=r"^teacher\.model: the lanes hold no teacher"):
        check_lanes_of_teacher(config, None)
    # Whoever trains elsewhere needs the lanes alone.
    check_lanes_of_teacher(settings(model=str(tmp_path / "gone")), manifest.teacher)


def test_vectors_may_come_from_tables(spark, settings, small_model, texts, tmp_path):
    folder = tmp_path / "prepared"
    write_corpus(folder, texts, negatives=0)
    # Found though they were not cleaned as those of the corpus are.
    given = [f"  {text}\t" for text in texts[: EXAMPLES - 2]]
    for name, some in (("a", given[:20]), ("b", given[20:])):
        rows = pa.table({"text": some, "at": [datetime.time(1)] * len(some)})
        # Spark does not know times, and bytes are texts too.
        if name == "b":
            rows = rows.set_column(0, "text", rows["text"].cast(pa.binary()))
        pq.write_table(rows, tmp_path / f"{name}.parquet")
        embedding = {
            "model": str(small_model),
            "inputs": [str(tmp_path / f"{name}.parquet")],
            "output": str(tmp_path / name),
        }
        embed_table(spark, parse({"embedding": embedding}))
    tables = [str(tmp_path / "a"), str(tmp_path / "b")]
    config = settings(vectors=tables, precision="fp32")
    missing = "2 of 40 texts of the corpus have no vector there"
    with pytest.raises(InputError, match=rf"^teacher\.vectors: {missing}"):
        prepare_teacher(spark, config)
    assert not (folder / "teacher").exists()
    rows = pq.read_table(folder / "corpus" / "pairs.parquet").slice(0, EXAMPLES - 3)
    pq.write_table(rows, folder / "corpus" / "pairs.parquet" / "part-0.parquet")
    assert prepare_teacher(spark, config).examples == EXAMPLES - 3
    held = TeacherVectors(width=32, precision="fp32", source=teacher_digest(config))
    found = pq.read_table(folder / "teacher" / "examples.parquet").to_pylist()
    wanted, embedder = texts_by_id(folder), load_embedder(small_model)
    for row in found:
        vectors = held.read(pa.array(row["teacher"], pa.binary()))
        expected = unit_length(embedder(wanted[row["id"]]))
        assert (vectors * expected).sum(axis=1).min() > 0.999
    assert {row["id"] for row in found} == {*wanted}


@pytest.mark.parametrize(
    ("teacher", "key"),
    [
        ({"model": "a", "vectors": ["b"]}, "teacher.vectors"),
        ({"vectors": ["b"], "dimensions": 8}, "teacher.dimensions"),
        ({"precision": "fp8", "model": "a"}, "teacher.precision"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(settings, teacher, key):
    with pytest.raises(InputError) as raised:
        settings(**teacher)
    assert raised.value.key == key


def test_a_teacher_that_is_not_there_is_refused_before_spark_starts(settings, small_model):
    cases = [
        ({"model": "/no/model"}, "teacher.model: there is no folder /no/model"),
        ({"model": str(small_model), "dimensions": 99}, "teacher.dimensions: 99 is not within"),
        ({"vectors": ["/no/table"]}, "teacher.vectors: there is no folder /no/table"),
    ]
    for teacher, said in cases:
        with pytest.raises(InputError, match=f"^{said}"):
            check_teacher(settings(**teacher))


def test_the_start_may_be_the_teacher(settings, small_model):
    named = settings(model=str(small_model))
    encoder = named.encoder.model_copy(update={"start": str(small_model)})
    config = settings(model="start").model_copy(update={"encoder": encoder})
    check_teacher(config)
    assert teacher_digest(config) == teacher_digest(named)
    held = TeacherVectors(width=32, precision="fp16", source=teacher_digest(named))
    check_lanes_of_teacher(config, held)
    with pytest.raises(InputError, match=r"^teacher\.model: .* vectors of another teacher"):
        check_lanes_of_teacher(settings(model="start"), held)
    with pytest.raises(InputError, match=r"^teacher\.model: a random start teaches nothing"):
        parse({"encoder": {"start": "random"}, "teacher": {"model": "start"}})


def test_how_the_teacher_computes_is_checked_and_another_way_makes_its_vectors_anew(
    settings, small_model
):
    (stage,) = (stage for stage in STAGES if stage.name == "teacher")
    teacher = {"model": str(small_model)}
    config = settings(**teacher)
    held = TeacherVectors(width=32, precision="fp16", source=teacher_digest(config))
    for change in ({"precision": "bf16"}, {"backend": "torch"}):
        other = settings(change, **teacher)
        assert stage.inputs(other) != stage.inputs(config)
        # They are of the same teacher.
        check_lanes_of_teacher(other, held)
    # How many texts are computed at a time decides nothing.
    assert stage.inputs(settings({"batch_tokens": 9}, **teacher)) == stage.inputs(config)
    # Vectors of tables are computed by nobody here.
    assert stage.inputs(settings({"precision": "bf16"})) == stage.inputs(settings())


def test_a_training_asks_whose_vectors_they_are_without_loading_the_teacher(
    settings, small_model, tmp_path
):
    folder = tmp_path / "model"
    shutil.copytree(small_model, folder)
    (weights,) = folder.glob("**/model.safetensors")
    weights.write_bytes(b"no safetensors")
    config = settings(model=str(folder))
    with pytest.raises(InputError, match=r"^teacher\.model: .* damaged"):
        check_teacher(config)
    held = TeacherVectors(width=32, precision="fp16", source=teacher_digest(config))
    check_lanes_of_teacher(config, held)
    weights.write_bytes(b"other weights")
    with pytest.raises(InputError, match=r"^teacher\.model: .* vectors of another teacher"):
        check_lanes_of_teacher(config, held)


def test_an_objective_that_asks_a_teacher_needs_one():
    guided = {"guide": "teacher", "false_negative_margin": 0.1}
    with pytest.raises(InputError, match=r"^teacher\.model: `in_batch_negatives` needs it"):
        parse({"objective": guided})
    with pytest.raises(InputError, match=r"^objective\.guide: a teacher needs a margin to tell"):
        parse({"objective": {"guide": "teacher"}, "teacher": {"model": "a"}})
