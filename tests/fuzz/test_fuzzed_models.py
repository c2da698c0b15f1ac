"""Folders of models and tokenizers that others have made, with any file damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import ODD_JSON, damaged_file, fuzzed, limited_memory, read_or_refused

from pipelines.errors import InputError
from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import read_encoder, start_encoder, write_encoder
from pipelines.models.spec import Dense
from pipelines.models.start import check_tokenizer, model_length, start_architecture
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import check_weights, random_weights
from pipelines.settings.load import parse
from pipelines.tokens.encoding import open_encoder
from pipelines.tokens.start import Prompts, configured_prompts
from pipelines.tokens.vocabulary import (
    copy_tokenizer,
    load_tokenizer,
    read_special_ids,
    save_wordpieces,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
SHAPE = {"vocabulary": len(WORDS), "hidden": 4, "normalise": True, "max_length": 16}
PROMPTS = Prompts((("query", "q: "), ("document", "d: ")), "query")
SPECS = {
    "static": StaticSpec(**SHAPE, prompts=PROMPTS),
    "bert": BertSpec(
        **SHAPE,
        layers=1,
        heads=2,
        intermediate=4,
        pooling="mean",
        prompts=PROMPTS,
        dense=(Dense(width=3),),
    ),
}
# The settings that name such a folder; a damaged file may be named itself.
NAMES = ("encoder.start", "tokens.vocabulary")


@pytest.fixture(scope="module", params=SPECS)
def whole(request, tmp_path_factory):
    return write_start(tmp_path_factory.mktemp(request.param), request.param)


def write_start(home: Path, kind: str) -> Path:
    (home / "words").mkdir()
    save_wordpieces(home / "words", WORDS, 16, lowercase=True)
    spec = SPECS[kind]
    write_encoder(home / "start", spec, random_weights(spec, 1), home / "words", "# Card\n")
    return home / "start"


def readers(folder: Path, copy: Path) -> Iterator[Callable[[], object]]:
    """What a training reads that begins with a model, each apart: an earlier one may refuse it."""
    config = parse({"encoder": {"start": str(folder)}})
    yield lambda: start_architecture(config)
    yield lambda: check_tokenizer(config)
    yield lambda: check_weights(*read_encoder(folder))
    yield lambda: start_encoder(config, len(WORDS))
    yield lambda: model_length(config)
    yield lambda: configured_prompts(config)
    yield lambda: encode_with_copy(folder, copy)


def encode_with_copy(folder: Path, copy: Path) -> None:
    copy.mkdir()
    copy_tokenizer(folder, copy, 16)
    read_special_ids(copy)
    encoder = open_encoder(load_tokenizer(copy), 16)
    encoder.encode(pa.array(["a b", "", "x"], pa.string()))


@fuzzed
@given(data=st.data())
def test_a_damaged_model_is_read_or_refused(whole, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("copies")
    shutil.copytree(whole, folder / "copy")
    files = sorted(path for path in (folder / "copy").rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files), label="file")
    path.write_bytes(data.draw(damaged_file(path)))
    try:
        for read in readers(folder / "copy", folder / "tokenizer"):
            read_or_refused(read, *NAMES, str(path))
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("config.json", {"max_position_embeddings": "x"}),
        ("config.json", {"model_type": []}),
        ("sentence_bert_config.json", {"max_seq_length": "x"}),
    ],
    ids=["positions", "type", "length"],
)
def test_values_of_other_types_are_refused_before_the_weights_are_read(tmp_path, name, changed):
    path = write_start(tmp_path, "bert") / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(InputError, match=r"^encoder\.start: .*cannot be read \(.+\)\. Repair"):
        model_length(parse({"encoder": {"start": str(path.parent)}}))


def test_a_vocabulary_without_a_token_for_unknown_words_is_refused(tmp_path):
    path = write_start(tmp_path, "bert") / "tokenizer.json"
    path.write_text(path.read_text().replace('"[UNK]": 1', '"[UNKNOWN]": 1'))
    with pytest.raises(InputError, match=r"^encoder\.start: the tokenizer in .*Missing \[UNK\]"):
        check_tokenizer(parse({"encoder": {"start": str(path.parent)}}))


@pytest.mark.parametrize("number", ODD_JSON)
def test_a_header_of_arrays_that_are_not_there_costs_no_memory(tmp_path, whole, number):
    folder = shutil.copytree(whole, tmp_path / "copy")
    (path,) = (one for one in folder.rglob("model.safetensors") if "Dense" not in str(one))
    header = '{"w": {"dtype": "F32", "shape": [%s, 4], "data_offsets": [0, 16]}}' % number  # noqa: UP031
    text = header.encode("utf-8", "surrogatepass")
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    with pytest.raises(InputError, match=r"^encoder\.start: "):
        read_encoder(folder)


def test_a_length_that_no_machine_could_hold_is_refused(tmp_path, whole):
    folder = shutil.copytree(whole, tmp_path / "copy")
    (path,) = (one for one in folder.rglob("model.safetensors") if "Dense" not in str(one))
    path.write_bytes((1 << 60).to_bytes(8, "little") + path.read_bytes()[8:])
    with limited_memory(), pytest.raises(InputError, match=r"^encoder\.start: "):
        read_encoder(folder)


def test_a_module_that_names_a_place_outside_of_its_folder_is_refused(tmp_path, whole):
    folder = shutil.copytree(whole, tmp_path / "copy")
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    modules[0]["path"] = "../../copy"
    path.write_text(json.dumps(modules))
    with pytest.raises(InputError, match=r"^encoder\.start: .*outside"):
        read_encoder(folder)
