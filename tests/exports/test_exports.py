"""Every export has the vectors of its model, whatever its layers, pooling and padding."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from tiny_checkpoints import TEXTS
from tokenizers import Tokenizer

from pipelines.catalog import EXPORTS
from pipelines.errors import InputError, PipelineError
from pipelines.exports import openvino, stage
from pipelines.exports.base import cosines_of
from pipelines.exports.folder import token_batch
from pipelines.exports.onnx import DATA, INT8, WHOLE
from pipelines.exports.stage import export_model
from pipelines.exports.texts import SENTENCES, CheckTexts
from pipelines.exports.texts import check_texts as stage_texts
from pipelines.models.architecture import architecture_of
from pipelines.models.folder import read_encoder, write_encoder
from pipelines.models.identity import model_digest
from pipelines.models.inference.embedder import load_embedder
from pipelines.tokens.start import default_start

# Each export is traced by PyTorch for seconds: one model has all that can be behind its layers.
WHOLLY = "mpnet+cls+dense+lsa"
FIRST = (WHOLLY, "qwen3", "static")
FURTHER = (
    *("bert+dense", "mpnet+lsa", "roberta", "distilbert", "electra", "modernbert", "llama"),
    *("gpt2", "gemma3_text+lsa"),
)
GIVEN = 32
ROWS = (*TEXTS, "a", "the model 🙂 reads", "日本語")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Fewer texts of Python's documentation to compare; test_export_command.py has them all."""

    def check_texts(config, length):
        texts = stage_texts(config, length)
        return replace(texts, given=texts.given[:GIVEN])

    monkeypatch.setattr(stage, "check_texts", check_texts)


@pytest.fixture(scope="module")
def made():
    """What was told of each export that `exported` has made."""
    return {}


@pytest.fixture(scope="module")
def exported(made, model, tmp_path_factory):
    """The ONNX export of a model, made once; that of `WHOLLY` has both precisions."""
    home = tmp_path_factory.mktemp("exports")

    def get(name, settings):
        if name not in made:
            more = {"int8": True, "least_int8": 0.5} if name == WHOLLY else {}
            made[name] = export_model(settings, model(name), home / name, "onnx", **more)
        return home / name

    return get


def run(folder, inputs, file=WHOLE):
    return onnxruntime.InferenceSession(str(folder / file)).run(None, inputs)


def batch(folder, texts=ROWS):
    return token_batch(Tokenizer.from_file(str(folder / "tokenizer.json")), texts)


MODELS = [
    *(pytest.param(name, marks=pytest.mark.slow) for name in FIRST),
    *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.matrix]) for name in FURTHER),
]


@pytest.mark.parametrize("name", MODELS)
def test_onnx_gives_the_vectors_of_the_model(name, model, exported, settings):
    folder = exported(name, settings)
    expected = load_embedder(model(name))(ROWS)
    inputs = batch(folder)
    states, embeddings = run(folder, inputs)
    assert cosines_of(embeddings, expected).min() > 0.99999
    np.testing.assert_allclose(embeddings, expected, atol=1e-4)
    # Every place of a text, padding too: any pooling of a reader returns the embedding.
    np.testing.assert_array_equal(states, np.broadcast_to(embeddings[:, None], states.shape))
    one_by_one = [run(folder, batch(folder, [text]))[1][0] for text in ROWS]
    np.testing.assert_allclose(one_by_one, embeddings, atol=1e-4)
    # A reader that truncates after it has added special tokens.
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    full = batch(folder, ["the model reads " * 40])["input_ids"]
    tokenizer.no_truncation()
    cut = token_batch(tokenizer, ["the model reads " * 40])["input_ids"][:, : full.shape[1]]
    of_cut, of_full = (
        run(folder, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[1]
        for ids in (cut, full)
    )
    np.testing.assert_allclose(of_cut, of_full, atol=1e-5)
    # Padding on the left, by a token that is none of the model's.
    for value in inputs.values():
        value[:] = value[:, ::-1]
    lengths = inputs["attention_mask"].sum(1)
    for row, length in enumerate(lengths):
        inputs["input_ids"][row, -length:] = inputs["input_ids"][row, -length:][::-1].copy()
        inputs["input_ids"][row, :-length] = 9
    np.testing.assert_allclose(run(folder, inputs)[1], embeddings, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [WHOLLY, "qwen3"])
def test_readers_of_weights_end_with_an_error(name, exported, settings):
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    folder = exported(name, settings)
    assert [*folder.rglob("*.safetensors")] == []
    with pytest.raises(OSError, match="no file named"):
        AutoModel.from_pretrained(folder)
    with pytest.raises(OSError, match="no file named"):
        SentenceTransformer(str(folder), device="cpu")
    with pytest.raises(InputError, match=r"does not fit|has no model"):
        read_encoder(folder)


@pytest.mark.slow
def test_the_folder_tells_readers_what_they_ask(model, exported, settings):
    folder = exported(WHOLLY, settings)
    read = {
        path.relative_to(folder).as_posix(): json.loads(path.read_text())
        for path in folder.rglob("*.json")
    }
    width = load_embedder(model(WHOLLY)).hidden
    assert read["config.json"]["hidden_size"] == width
    assert read["1_Pooling/config.json"]["word_embedding_dimension"] == width
    assert read["sentence_bert_config.json"]["max_seq_length"] == 24
    assert read["tokenizer_config.json"]["model_max_length"] == 24
    assert [entry["path"] for entry in read["modules.json"]] == ["", "1_Pooling", "2_Normalize"]
    assert read["config_sentence_transformers.json"]["prompts"]["query"] == "ask: "
    special = read["special_tokens_map.json"]
    assert {*special} <= {"bos_token", "eos_token", "unk_token", "pad_token"}
    record = read["export.json"]
    assert record["model_digest"] == model_digest(model(WHOLLY))
    assert record["files"][WHOLE]["least_cosine"] > 0.9999
    card = (folder / "README.md").read_text()
    assert record["model_digest"] in card
    assert 'embed(["ask: when does the museum open"])' in card
    for reader in ("onnxruntime", "fastembed", "transformers.js", "SentenceTransformer"):
        assert reader in card


@pytest.mark.slow
def test_openvino_gives_the_vectors_of_the_model(model, exported, settings, tmp_path, monkeypatch):
    # The graph is that of ONNX, which takes seconds to trace.
    graph = exported(WHOLLY, settings) / WHOLE
    monkeypatch.setattr(openvino, "write_graph", lambda source, path: shutil.copy(graph, path))
    made = export_model(settings, model(WHOLLY), tmp_path / "out", "openvino")
    (file,) = made.files
    embed = EXPORTS.load("openvino").open(tmp_path / "out", file)
    np.testing.assert_allclose(embed(ROWS), load_embedder(model(WHOLLY))(ROWS), atol=1e-4)
    with pytest.raises(InputError, match=r"^--int8: OpenVINO quantises by a library"):
        export_model(settings, model(WHOLLY), tmp_path / "out", "openvino", int8=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["static", "static-limited"])
def test_model2vec_gives_the_vectors_of_the_model(name, model, settings, tmp_path):
    model2vec = pytest.importorskip("model2vec")
    from sentence_transformers import SentenceTransformer

    made = export_model(settings, model(name), tmp_path / "out", "model2vec")
    texts = [*ROWS, "the model reads text " * 40, " " * 500 + "value"]
    expected = load_embedder(model(name))(texts)
    loaded = model2vec.StaticModel.from_pretrained(tmp_path / "out")
    known = [0, 3, 4]
    # What the library reads in its own way is told.
    assert cosines_of(loaded.encode(texts), expected)[known].min() > 0.99999
    assert "texts have other vectors in model2vec" in made.notes[0]
    loaded.unk_token_id, loaded.median_token_length = None, 10**6
    np.testing.assert_allclose(loaded.encode(texts), expected, atol=1e-5)
    by_library = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    np.testing.assert_allclose(by_library, expected, atol=1e-5)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "license: apache-2.0" in card
    assert "model.unk_token_id = None" in card


def test_model2vec_holds_static_encoders_alone(model, settings, tmp_path):
    pytest.importorskip("model2vec")
    with pytest.raises(InputError, match=r"^--to: model2vec holds static encoders alone"):
        export_model(settings, model(WHOLLY), tmp_path / "out", "model2vec")
    assert [*tmp_path.glob("out*")] == []


@pytest.mark.slow
def test_int8_is_measured_and_refused_below_a_bound(exported, made, settings):
    exported(WHOLLY, settings)
    files = made[WHOLLY].files
    whole, small = files[WHOLE], files[INT8]
    assert (whole["precision"], small["precision"]) == ("fp32", "int8")
    assert 0.5 < small["least_cosine"] < whole["least_cosine"]
    assert small["bytes"] < whole["bytes"]
    with pytest.raises(InputError, match=r"^--int8: it moves the vectors down to a cosine of 0\.9"):
        stage._check_fits(files, least_int8=1.0)


@pytest.mark.slow
def test_weights_above_the_limit_of_a_file_are_beside_it(model, settings, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.exports.onnx.MOST_BYTES", 1000)
    made = export_model(settings, model("static"), tmp_path / "out", "onnx")
    beside = (tmp_path / "out" / WHOLE).with_name(DATA)
    size = beside.stat().st_size + (tmp_path / "out" / WHOLE).stat().st_size
    assert made.files[WHOLE]["bytes"] == size
    _, embeddings = run(tmp_path / "out", batch(tmp_path / "out"))
    np.testing.assert_allclose(embeddings, load_embedder(model("static"))(ROWS), atol=1e-5)


@pytest.mark.slow
def test_other_vectors_leave_nothing(model, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "LEAST", 1.1)
    with pytest.raises(PipelineError, match=r"are not the model's .*nothing was written"):
        export_model(settings, model("static"), tmp_path / "out", "onnx")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


KILLED = """
import os, signal, sys
from pathlib import Path
from pipelines.exports import stage
from pipelines.settings.load import load

stage.compare = lambda *unused: os.kill(os.getpid(), signal.SIGKILL)
model, output = map(Path, sys.argv[1:])
stage.export_model(load(None, []), model, output, "model2vec")
"""


@pytest.mark.slow
def test_a_killed_export_leaves_nothing_that_looks_whole(model, settings, tmp_path):
    """Of the form that takes the fewest imports: all are put in place in one way."""
    pytest.importorskip("model2vec")
    out = tmp_path / "exports" / "out"
    arguments = [sys.executable, "-c", KILLED, str(model("static")), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(arguments, check=False, timeout=300, cwd=tmp_path, env=environment)
    assert ended.returncode == -signal.SIGKILL
    assert not out.exists()
    export_model(settings, model("static"), out, "model2vec")
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "step"), [(1, 21), pytest.param(6, 1, marks=pytest.mark.matrix)]
)
def test_the_packaged_start_is_equal_at_every_length(layers, step, settings, tmp_path, monkeypatch):
    start, folder = tmp_path / "start", tmp_path / "out"
    spec, weights = read_encoder(default_start())
    spec = replace(spec, layers=layers)
    kept = architecture_of(spec).weight_shapes(spec)
    write_encoder(start, spec, {name: weights[name] for name in kept}, default_start(), "")
    # Its own comparison is measured in the other tests, and takes longer than this one.
    few = CheckTexts(SENTENCES[:8], (), ("word " * 300,), "of the test")
    monkeypatch.setattr(stage, "check_texts", lambda config, length: few)
    export_model(settings, start, folder, "onnx")
    embed = load_embedder(start)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words = [
        word
        for word, number in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
        if word.isalpha() and word.isascii() and number > 2000
    ]
    # A word of the vocabulary is one token, and two more are around a text.
    counts = [*range(1, 254, step), 254]
    texts = [" ".join(words[7 * count : 8 * count]) for count in counts]
    session = onnxruntime.InferenceSession(str(folder / WHOLE))

    def worst(size, chosen):
        cosines = []
        for start in range(0, len(chosen), size):
            part = chosen[start : start + size]
            inputs = token_batch(tokenizer, part)
            lengths.update(inputs["attention_mask"].sum(1).tolist())
            (found,) = session.run(["sentence_embedding"], inputs)
            cosines.append(cosines_of(found, embed(part)).min())
        return min(cosines)

    lengths: set[int] = set()
    assert worst(1, texts[::4]) >= 0.9999
    others = [text for number, text in enumerate(texts) if number % 4]
    assert worst(3, others) >= 0.9999
    assert lengths == {count + 2 for count in counts}
    short = [text for text, count in zip(texts, counts, strict=True) if count <= 64]
    assert worst(64, [short[number % len(short)] for number in range(64)]) >= 0.9999
