"""Questions in words: only the model that made a table may embed them."""

import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.cli import main
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.models.folder import default_start, read_encoder, write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.weights import random_weights
from pipelines.vectors.embedding import embedding_options, vector_array
from pipelines.vectors.search import embed_queries, find_texts
from pipelines.vectors.store import open_table


@pytest.fixture
def model(small_model, tmp_path):
    return shutil.copytree(small_model, tmp_path / "model")


@pytest.fixture
def table(model, lines, tmp_path):
    """As an embedding job leaves it: vectors, and which model made them."""
    folder = tmp_path / "table"
    folder.mkdir()
    vectors = load_embedder(model)(lines)
    column = vector_array(vectors, np.ones(len(lines), bool))
    pq.write_table(pa.table({"text": lines, "embedding": column}), folder / "part-0.parquet")
    return replace(
        open_table(folder),
        text="text",
        model=str(model),
        model_sha256=embedding_options(model).model_sha256,
    )


def retrain(model) -> None:
    """Other weights of the same shape in the same folder."""
    spec, _ = read_encoder(model)
    before = model.rename(model.with_name("before"))
    write_encoder(model, spec, random_weights(spec, 6), before, "# Another\n")
    shutil.rmtree(before)


def test_a_model_that_was_replaced_is_refused(table, model, lines) -> None:
    assert find_texts(table, lines[4:5], 1)[0].position == 4
    retrain(model)
    with pytest.raises(InputError, match=r"^embedding.model: .*another model.*Embed the table ag"):
        find_texts(table, lines[4:5], 1)


def test_the_model_is_looked_for_where_it_is_named(table, model, small_model, lines) -> None:
    retrain(model)
    hits = find_texts(table, lines[4:5], 1, model=small_model)
    assert [(hit.position, hit.text) for hit in hits] == [(4, lines[4])]
    shutil.rmtree(model)
    with pytest.raises(InputError, match=r"^embedding.model: there is no folder"):
        embed_queries(table, ["x"])
    with pytest.raises(InputError, match=r"^embedding.model: .* was made with another model than"):
        embed_queries(table, ["x"], model=default_start())


def test_a_table_of_unknown_make_needs_a_model(table, small_model, lines) -> None:
    foreign = replace(table, model=None, model_sha256=None)
    with pytest.raises(InputError, match=r"^embedding.model: .* names no model"):
        embed_queries(foreign, ["x"])
    assert find_texts(foreign, lines[9:10], 1, model=small_model)[0].position == 9


def test_the_command_asks_the_model_of_the_settings(spark, table, model, lines, capsys) -> None:
    output, folder = f"embedding.output={table.folder}-again", f"embedding.model={model}"
    inputs = f"embedding.inputs=[{table.files[0].path}]"
    column = "embedding.output_column=own"
    settings = [part for text in (output, inputs, column) for part in ("--set", text)]
    assert main(["embed", *settings, "--set", folder]) == 0
    question = ["search", "--query", lines[4], "-k", "1", *settings]
    assert main(question) == 0
    assert lines[4][:20] in capsys.readouterr().out
    kept = shutil.copytree(model, model.with_name("kept"))
    retrain(model)
    for more in ([], ["--set", folder]):
        assert main([*question, *more]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: embedding.model: ")
        assert "was made with another model" in error
    assert main([*question, "--set", f"embedding.model={kept}"]) == 0


@pytest.mark.parametrize(
    ("made_in", "asked_in"), [("fp32", "fp32"), ("bf16", "auto"), (None, "auto")]
)
def test_queries_are_as_precise_as_the_table(table, made_in, asked_in, monkeypatch) -> None:
    manifest = {"text_column": "text", "key_column": None, "vector_column": "embedding"}
    known = manifest if made_in is None else manifest | {"precision": made_in}
    storage.write_json(table.folder / "_manifest.json", known)
    opened = open_table(table.folder)
    assert opened.precision == made_in
    asked = []

    def load(folder, *, backend, precision):
        asked.append(precision)
        return load_embedder(folder, backend=backend, precision="fp32")

    monkeypatch.setattr("pipelines.vectors.search.load_embedder", load)
    embed_queries(replace(table, precision=opened.precision), ["a question"])
    assert asked == [asked_in]


def test_texts_and_keys_of_files_of_other_types_are_found(model, table, lines) -> None:
    vectors = pq.read_table(table.folder / "part-0.parquet").column("embedding")[:2]
    texts = pa.array(lines[:2])
    stored = [
        {"text": texts.cast(pa.binary()), "id": pa.array([1, 2])},
        {"text": texts.dictionary_encode(), "id": pa.array(["3", "4"], pa.string_view())},
    ]
    for number, columns in enumerate(stored):
        rows = pa.table(columns | {"embedding": vectors})
        pq.write_table(rows, table.folder / f"part-{number}.parquet")
    found = find_texts(
        replace(open_table(table.folder), text="text", key="id", model=str(model)), lines[:1], 2
    )
    assert [(hit.text, hit.key) for hit in found] == [(lines[0], "1"), (lines[0], "3")]


@pytest.mark.slow
def test_queries_have_the_prompt_that_finds_the_texts_of_the_table(model, table, tmp_path) -> None:
    prompts = {"query": "ask: ", "passage": "text: ", "topic": "topic: "}
    storage.write_json(model / "config_sentence_transformers.json", {"prompts": prompts})
    embed, asked = load_embedder(model, precision="auto"), ["How is an argument added?"]
    expected = {None: "query", "document": "query", "passage": "query", "topic": "topic"}
    for made_with, prompt in expected.items():
        options = embedding_options(model, prompt_name=made_with)
        made = replace(table, model_sha256=options.model_sha256, prompt_name=made_with)
        np.testing.assert_allclose(embed_queries(made, asked), embed(asked, prompt), atol=1e-5)
    with pytest.raises(InputError, match=r"^embedding.prompt_name: the model has no prompt `x`"):
        embedding_options(model, prompt_name="x")
