"""Students that begin with some of the layers of their teacher."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_checkpoints import FAMILIES, write_plain

from pipelines.errors import InputError
from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import check_start, start_encoder, write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.smaller import chosen_layers, with_layers
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import WORDS, check_weights, random_weights
from pipelines.pretraining.start import check_objective
from pipelines.settings.load import parse
from pipelines.tokens.vocabulary import load_tokenizer

SPEC = BertSpec(vocabulary=20, layers=6, hidden=8, heads=2, intermediate=16, positions=8)


@given(
    st.integers(1, 48).flatmap(lambda layers: st.tuples(st.just(layers), st.integers(1, layers)))
)
def test_chosen_layers_are_spaced_evenly(numbers):
    layers, count = numbers
    chosen = chosen_layers(layers, count)
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert chosen[-1] == layers - 1
    steps = [after - before for before, after in pairwise(chosen)]
    assert not steps or max(steps) - min(steps) <= 1


def test_the_layers_of_the_start_are_those_of_the_student():
    weights = random_weights(SPEC, 1)
    spec, kept = with_layers(SPEC, weights, 3)
    assert spec.layers == 3
    check_weights(spec, kept)
    for place, layer in enumerate([0, 2, 5]):
        name = "attention.self.query.weight"
        student, teacher = f"encoder.layer.{place}.{name}", f"encoder.layer.{layer}.{name}"
        assert kept[student] is weights[teacher]
    assert kept["embeddings.LayerNorm.weight"] is weights["embeddings.LayerNorm.weight"]


@pytest.mark.parametrize(
    ("spec", "count", "said"),
    [
        (SPEC, 7, r"the start has 6 layers\. Keep at most 6"),
        (StaticSpec(vocabulary=20, hidden=8), 1, "architecture static cannot leave layers out"),
    ],
)
def test_layers_that_are_not_there_are_refused(spec, count, said):
    with pytest.raises(InputError, match=said) as refused:
        with_layers(spec, random_weights(spec, 1), count)
    assert refused.value.key == "encoder.keep_layers"


def without_layers(start, **encoder):
    encoder = {"start": str(start), "keep_layers": 0, **encoder}
    return parse({"encoder": encoder, "tokens": {"vocabulary": "start"}})


def test_without_layers_a_word_has_the_direction_that_the_start_gives_it(small_folder, tmp_path):
    config = without_layers(small_folder)
    check_start(config)
    tokenizer = load_tokenizer(small_folder)
    spec, weights = start_encoder(config, tokenizer.get_vocab_size())
    assert spec.kind == "static"
    check_weights(spec, weights)

    words = [tokenizer.id_to_token(place) for place in range(spec.vocabulary)]
    # Pieces within words and special tokens are no texts of one token.
    known = [place for place, word in enumerate(words) if word.isalpha()]
    assert len(known) > 100
    alone = load_embedder(small_folder)([words[place] for place in known])
    scaled = weights[WORDS] / np.log1p(np.arange(spec.vocabulary))[:, None].clip(1e-9)
    differences = alone - scaled[known]
    np.testing.assert_allclose(differences, differences[:1].repeat(len(known), 0), atol=1e-5)

    write_encoder(tmp_path / "static", spec, weights, small_folder, "")
    found = load_embedder(tmp_path / "static")([words[known[5]], f"{words[7]} {words[known[9]]}"])
    assert np.isfinite(found).all()


def test_without_layers_a_start_that_has_none_is_refused(tmp_path, small_folder):
    spec = StaticSpec(vocabulary=load_tokenizer(small_folder).get_vocab_size(), hidden=8)
    write_encoder(tmp_path / "static", spec, random_weights(spec, 1), small_folder, "")
    with pytest.raises(InputError, match="architecture static cannot leave layers out"):
        check_start(without_layers(tmp_path / "static"))


def test_without_layers_texts_of_any_length_are_read(small_folder):
    config = without_layers(small_folder, max_length=4096)
    spec, _ = start_encoder(config, load_tokenizer(small_folder).get_vocab_size())
    assert spec.max_length == 4096


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"encoder": {"lora": {"rank": 2, "targets": ["qery"]}}}, "encoder.lora.targets: .*qery"),
        ({"encoder": {"freeze": {"layers": 9}}}, "encoder.freeze.layers: "),
        ({"encoder": {"keep_layers": 3}}, "encoder.keep_layers: the start has 2 layers"),
        ({"objective": {"dimensions": [96]}}, "objective.dimensions: 96 is more than the 64 "),
    ],
)
def test_what_the_start_has_not_is_refused_before_anything_is_prepared(small_folder, tree, said):
    tree["encoder"] = {"start": str(small_folder), **tree.get("encoder", {})}
    tree["training"] = {"engine": "local", "framework": "torch", "workers": 1}
    with pytest.raises(InputError, match=rf"^{said}"):
        check_start(parse({**tree, "tokens": {"vocabulary": "start"}}))


def test_an_objective_that_needs_layers_is_told_that_there_are_none(small_folder):
    tree = {
        "corpus": {"pairs": "single"},
        "objective": {"name": "mlm"},
        "training": {"engine": "torch", "framework": "torch"},
    }
    config = without_layers(small_folder).model_copy(
        update={key: getattr(parse(tree), key) for key in tree}
    )
    with pytest.raises(InputError, match="`mlm` cannot train architecture static"):
        check_objective(config, None)


def test_without_layers_a_tokenizer_without_special_tokens_is_refused(tmp_path):
    start = write_plain(tmp_path / "start", FAMILIES["qwen3"])
    with pytest.raises(
        InputError, match=r"^encoder\.keep_layers: the tokenizer in .* adds no \[CLS\]"
    ):
        start_encoder(without_layers(start), 1)
