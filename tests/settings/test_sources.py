"""Sources of a corpus: whole wherever they are written down, and refused by name."""

import json
from pathlib import Path

import pytest

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.settings.load import dump, load, parse
from pipelines.settings.objective import objective
from pipelines.settings.resuming import fixed_settings
from pipelines.tokens.start import training_prompts

ROOT = Path(__file__).resolve().parents[2]
PAIRS = {"name": "pairs", "inputs": ["a.csv"], "pairs": "columns"}
SCORED = {**PAIRS, "name": "scored", "score_column": "s", "objective": {"name": "cosent"}}
ALONE = {"name": "alone", "inputs": ["b.csv"], "pairs": "single", "objective": {"name": "simcse"}}


def settings(*sources: dict, **sections) -> dict:
    corpus = {"format": "csv", "min_characters": 3, "sources": list(sources)}
    return {"training": {"dropout": 0.1}, **sections, "corpus": corpus}


def test_each_source_is_as_if_it_were_alone():
    config = parse(settings(PAIRS, SCORED, ALONE, objective={"temperature": 0.02}))
    pairs, scored, alone = config.by_source()
    assert pairs.objective == objective(temperature=0.02)
    assert scored.objective == objective("cosent")
    assert alone.objective == objective("simcse")
    assert [one.corpus.pairs for one in (pairs, scored, alone)] == ["columns", "columns", "single"]
    # What a source leaves out is as in the section.
    assert {one.corpus.format for one in (pairs, scored, alone)} == {"csv"}
    assert {one.corpus.min_characters for one in (pairs, scored, alone)} == {3}
    assert all(one.corpus.sources == () for one in (pairs, scored, alone))


def test_a_corpus_without_sources_is_its_own():
    assert Config().by_source() == (Config(),)


def test_sources_are_read_as_they_were_written(tmp_path):
    config = parse(settings(PAIRS, SCORED | {"weight": None}, ALONE))
    (tmp_path / "a.yaml").write_text(dump(config))
    assert load(tmp_path / "a.yaml") == config
    assert load(tmp_path / "a.yaml", ["corpus.format=jsonl"]) == config.model_copy(
        update={"corpus": config.corpus.model_copy(update={"format": "jsonl"})}
    )


def test_sources_may_be_given_on_the_command_line():
    sources = json.dumps([PAIRS, SCORED])
    config = load(None, [f"corpus.sources={sources}", "corpus.format=csv"])
    assert [source.name for source in config.corpus.sources] == ["pairs", "scored"]


def test_prompts_of_a_source_take_the_place_of_the_models():
    encoder = {"start": "random", "prompts": {"query": "q: ", "document": "d: "}}
    told = PAIRS | {"name": "told", "prompts": {"anchor": "find: "}}
    config = parse(settings(PAIRS, told, ALONE, encoder=encoder))
    prompts = [training_prompts(one) for one in config.by_source()]
    assert prompts == [
        {"anchor": "q: ", "positive": "d: ", "negatives": "d: "},
        {"anchor": "find: "},
        {},
    ]


def test_weights_and_objectives_are_fixed_for_a_run():
    def fixed(*sources: dict) -> dict:
        return dict(fixed_settings(parse(settings(*sources))))

    weighted = [PAIRS | {"weight": 2}, ALONE | {"weight": 1}]
    before = fixed(*weighted)
    assert before["corpus.sources.pairs.weight"] == 2
    assert before != fixed(PAIRS | {"weight": 3}, weighted[1])
    other = {"name": "simcse", "temperature": 0.2}
    assert before != fixed(weighted[0], weighted[1] | {"objective": other})
    assert not [key for key in fixed_settings(Config()) if key.startswith("corpus")]


REFUSED = [
    ([PAIRS | {"name": "a b"}], r"^corpus\.sources\.name: `a b` is no name of a source"),
    ([PAIRS, PAIRS], r"^corpus\.sources\.name: two sources are called pairs"),
    ([PAIRS | {"weight": 1}, SCORED], r"^corpus\.sources\.weight: source scored has none"),
    ([PAIRS | {"weight": 0}], r"^corpus\.sources\.weight: `0` does not fit"),
    ([PAIRS | {"weight": float("inf")}], r"^corpus\.sources\.weight: `inf` does not fit"),
    ([{"inputs": ["a.csv"]}], r"^corpus\.sources\.name: .* Add the missing value"),
    ([PAIRS | {"inputs": []}], r"^corpus\.inputs: source pairs: it is empty"),
    ([PAIRS | {"formt": "csv"}], r"^corpus\.sources\.formt: there is no such setting"),
    ([ALONE | {"objective": None}], r"^objective\.name: source alone: single texts have no"),
    (
        [PAIRS | {"objective": {"name": "triplet"}}],
        r"^corpus\.pairs: source pairs: `triplet` cannot use `columns`",
    ),
    ([PAIRS | {"objective": {"name": "none"}}], r"^objective\.name: there is no loss `none`"),
    ([PAIRS | {"key_column": "k"}], r"^corpus\.sources\.key_column: source pairs: `k` is not"),
    ([PAIRS | {"prompts": {"query": "q"}}], r"^corpus\.prompts: source pairs: `query` is no side"),
]


@pytest.mark.parametrize(("sources", "told"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_source(sources, told):
    with pytest.raises(InputError, match=told):
        parse(settings(*sources))


def test_what_is_of_one_source_alone_is_refused():
    bigdl = {"framework": "bigdl", "engine": "bigdl"}
    with pytest.raises(InputError, match=r"^training\.framework: bigdl trains on one source only"):
        parse(settings(PAIRS, training=bigdl))
    with pytest.raises(InputError, match=r"^corpus\.sources: a corpus with sources has no teacher"):
        parse(settings(PAIRS, teacher={"model": "teacher"}))


def test_the_example_is_accepted():
    config = load(ROOT / "jobs" / "sources.yaml")
    assert [source.weight for source in config.corpus.sources] == [3, 1]
