"""A start checkpoint or a tokenizer that is damaged is named in one line."""

import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from pipelines.errors import InputError
from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import read_encoder, write_encoder
from pipelines.models.start import check_tokenizer
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import random_weights
from pipelines.settings.load import parse
from pipelines.tokens.vocabulary import save_wordpieces

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]


@pytest.fixture(scope="module", params=["bert", "static"])
def whole(request, tmp_path_factory):
    """A start checkpoint of a few kilobytes, of either kind."""
    home = tmp_path_factory.mktemp(request.param)
    (home / "words").mkdir()
    save_wordpieces(home / "words", WORDS, 16, lowercase=True)
    shape = {"vocabulary": len(WORDS), "hidden": 4, "normalise": True, "max_length": 16}
    spec = StaticSpec(**shape)
    if request.param == "bert":
        spec = BertSpec(**shape, layers=1, heads=2, intermediate=4, pooling="mean")
    write_encoder(home / "start", spec, random_weights(spec, 1), home / "words", "# Card\n")
    return home / "start"


def is_refused(read, *arguments) -> bool:
    """Whether it is refused, in one line with the key; anything else is an error of this test."""
    try:
        read(*arguments)
    except InputError as error:
        assert str(error).startswith(("encoder.start: ", "tokens.vocabulary: "))
        assert "\n" not in str(error)
        return True
    return False


def refused(folder) -> tuple[bool, bool]:
    """Whether it is refused as a start, and as a tokenizer."""
    named = parse({"encoder": {"start": "random"}, "tokens": {"vocabulary": str(folder)}})
    return is_refused(read_encoder, folder), is_refused(check_tokenizer, named)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_is_cut_or_replaced(whole, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("copies") / "copy"
    shutil.copytree(whole, folder)
    assert refused(folder) == (False, False)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file = data.draw(st.sampled_from(files), label="file")
    content = file.read_bytes()
    cut = st.integers(0, max(0, len(content) - 1)).map(lambda size: content[:size])
    other = st.sampled_from([b"", b"[]", b"null", b"7", b'"text"', b"{}", b"\xff\xfe", b"[[[["])
    file.write_bytes(data.draw(cut | other, label="content"))
    start, tokenizer = refused(folder)
    assert start or file.name != "model.safetensors"
    assert tokenizer or file.name != "tokenizer.json"


def test_the_file_of_the_weights_is_named(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "copy")
    (file,) = folder.rglob("model.safetensors")
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"^encoder\.start: .*model\.safetensors.*incomplete"):
        read_encoder(folder)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused_before_training(whole, tmp_path, number):
    folder = shutil.copytree(whole, tmp_path / "copy")
    (file,) = folder.rglob("model.safetensors")
    weights = load_file(file)
    name = next(name for name in weights if "embedding" in name)
    weights[name].flat[0] = number
    save_file(weights, file)
    with pytest.raises(InputError, match=r"^encoder\.start: .* numbers in .* that are not finite"):
        read_encoder(folder)
