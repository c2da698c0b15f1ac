"""A model has one digest in all records, and those of earlier releases stay valid."""

from __future__ import annotations

from pathlib import Path

import pytest
from embedding_rounds import embed_here, write_lake
from huggingface_hub import ModelCard

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.run_folder import RunFolder
from pipelines.model_card.card import write_card
from pipelines.models.identity import CARD_FILE, FIELD, digest_in_earlier_tables
from pipelines.promotion import current, model_digest
from pipelines.promotion.stage import promote
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.vectors.embed import EmbeddingJob
from pipelines.vectors.plan import PLAN_FILE
from pipelines.vectors.search import embed_queries
from pipelines.vectors.store import open_table
from pipelines.vectors.table_job import MANIFEST_FILE
from pipelines.vectors.teacher import check_teacher

ROWS = [(1, "reset my password"), (2, "the museum opens at nine"), (3, "a page")]


@pytest.fixture
def run(made_run, tmp_path) -> RunFolder:
    """A run, measured on the texts of a set."""
    made, spec = made_run(tmp_path / "run", {})
    known = storage.read_json(made.metrics)
    known["measured"]["sets"] = {"retrieval": "the same texts"}
    storage.write_json(made.metrics, known)
    write_card(made, parse({}), spec)
    return made


@pytest.fixture
def config(run, tmp_path) -> Config:
    write_lake(tmp_path / "lake", {"a": ROWS})
    return parse(
        {
            "run": {"folder": str(run.path)},
            "promotion": {
                "target": str(tmp_path / "served"),
                "accept": ["worse_than_start"],
                "metrics": ["retrieval.mrr@10"],
            },
            "embedding": {
                "inputs": [str(tmp_path / "lake")],
                "output": str(tmp_path / "table"),
                "precision": "fp32",
                "key_column": "id",
            },
        }
    )


def of(config: Config, model: Path, output: Path) -> Config:
    return config.changed("embedding", model=str(model), output=str(output))


def records(run: RunFolder, config: Config, tmp_path: Path) -> dict[str, object]:
    """The digest in each place, after training, evaluation, promotion and embedding."""
    version = promote(config).version
    tables = {"run": run.model, "served": current(config.promotion.target)}
    for name, model in tables.items():
        assert embed_here(of(config, model, tmp_path / f"{name}-table")) == len(ROWS)
    return {
        "evaluation": storage.read_json(run.metrics)["measured"][FIELD],
        "card": ModelCard((run.model / CARD_FILE).read_text()).data.to_dict()[FIELD],
        "promotion": storage.read_json(version / "promotion.json")[FIELD],
        "run's promotion": storage.read_json(run.promotion)[FIELD],
        **{
            name: storage.read_json(tmp_path / f"{name}-table" / MANIFEST_FILE)[FIELD]
            for name in tables
        },
        "run folder": model_digest(run.model),
        "version": model_digest(version),
        "current": model_digest(current(config.promotion.target)),
    }


def test_all_places_name_one_digest(run, config, tmp_path) -> None:
    assert set(records(run, config, tmp_path).values()) == {model_digest(run.model)}
    # So a table of the run's model goes on with the served one.
    write_lake(tmp_path / "lake", {"a": [*ROWS, (4, "a new account")]})
    assert embed_here(of(config, current(config.promotion.target), tmp_path / "run-table")) == 1


def test_records_of_earlier_releases_are_not_stale(run, config, tmp_path) -> None:
    promote(config)
    before = storage.digest_folder(run.model, without=(CARD_FILE,))
    for path, place in (
        (run.metrics, ("measured",)),
        (tmp_path / "served" / "versions" / "00001" / "promotion.json", ()),
    ):
        tree = storage.read_json(path)
        record = tree[place[0]] if place else tree
        del record[FIELD]
        record["model"] = before
        storage.write_json(path, tree)
    assert promote(config).version.name == "00001"
    assert "This model has no evaluation yet" not in write_card(run, parse({})).read_text()
    (run.model / "modules.json").write_text("[]")
    with pytest.raises(InputError, match="has changed since its evaluation"):
        promote(config)


@pytest.mark.parametrize("embeds", ["run", "served"])
def test_tables_of_earlier_releases_keep_their_vectors(run, config, tmp_path, embeds) -> None:
    promote(config)
    model = run.model if embeds == "run" else current(config.promotion.target)
    table = tmp_path / "table"
    asked = of(config, model, table)
    embed_here(asked)
    known = digest_in_earlier_tables(model)
    plan, manifest = (storage.read_json(table / name) for name in (PLAN_FILE, MANIFEST_FILE))
    plan["identity"]["embedding.model"] = known
    manifest["settings"]["embedding.model"] = known
    del manifest[FIELD]
    storage.write_json(table / PLAN_FILE, plan)
    storage.write_json(table / MANIFEST_FILE, manifest)
    assert EmbeddingJob.of(asked).is_up_to_date()
    assert embed_queries(open_table(table), ["a page"], "auto").shape == (1, 16)
    # Beside a table of this release, as one teacher's.
    embed_here(of(config, model, tmp_path / "new"))
    tables = [str(table), str(tmp_path / "new")]
    check_teacher(config.changed("teacher", vectors=tables))
    write_lake(tmp_path / "lake", {"a": [*ROWS, (4, "a new account")]})
    assert embed_here(asked) == 1
    assert storage.read_json(table / MANIFEST_FILE)[FIELD] == model_digest(run.model)
