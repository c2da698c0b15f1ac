"""What a table of negatives follows from, and where it is made until it takes its place.

`_mining.json` says what a table follows from, and is the first thing in its folder; beside it, in
`_work`, are texts, vectors and pairs, until the table is whole.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipelines.embedding.options import EmbeddingOptions, embedding_options
from pipelines.embedding.places import beginning, begun_folders, check_places, discard_begun
from pipelines.errors import InputError
from pipelines.files import records, storage, versions
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, listed, location
from pipelines.files.ownership import NEGATIVES
from pipelines.files.run_folder import RunFolder
from pipelines.mining.inputs import DOCUMENTS, INPUTS, stamps
from pipelines.settings import Config, MiningSettings
from pipelines.tokens.start import Prompts, read_prompts

logger = logging.getLogger(__name__)

PLAN_FILE = "_mining.json"
MANIFEST_FILE = "_manifest.json"
WORK = "_work"
OUTPUT = "mining.output"
MODEL = "mining.model"
FORM = 1
"""Of the files of the work: another release may not go on with them."""

_FORM_KEY = "form"
_OWN = ("output", "overwrite", "model", "inputs", "documents")
_OF_TEXTS = (
    *("format", "anchor_column", "positive_column", "group_column", "key_column"),
    *("documents_format", "documents_column", "documents_group_column", "part_rows"),
)


@dataclass(frozen=True)
class Plan:
    """What is written when a table is begun.

    Attributes:
        texts: What texts, vectors and pairs follow from, by setting.
        negatives: What else the table follows from.
        backend: Who embeds, where the setting is ``auto`` too.
        precision: The same of the precision.
    """

    texts: Mapping[str, Any]
    negatives: Mapping[str, Any]
    backend: str
    precision: str

    @property
    def is_dated(self) -> bool:
        """Whether a change of the inputs would be noticed: tables by name have no version."""
        told = (self.texts[INPUTS], self.texts[DOCUMENTS])
        return all(one is None or one[1] is not None for one in told)

    def differing(self, other: Plan) -> str | None:
        """The first setting in which another table is of something else."""
        here, there = {**self.texts, **self.negatives}, {**other.texts, **other.negatives}
        return next((key for key in here if here[key] != there.get(key)), None)


def read_plan(folder: Location) -> Plan | None:
    """The plan in a folder; None where there is none."""
    path = folder / PLAN_FILE
    known: Plan | None = records.read(path, Plan) if path.is_file() else None
    return known


def write_plan(folder: Location, plan: Plan) -> None:
    """Writes a plan into the folder of its table."""
    storage.write_json(folder / PLAN_FILE, asdict(plan))


def output_folder(config: Config) -> Location:
    """The place of the table."""
    return location(config.mining.output, config.storage).expanduser().absolute()


def options_of(config: Config, threads: int = 1, backend: str | None = None) -> EmbeddingOptions:
    """How texts are embedded: by the model of the section, as the section `embedding` says.

    Raises:
        InputError: There is no such model, or the settings do not fit it.
    """
    named = config.mining.model
    model = (
        RunFolder.of(config).model
        if named is None
        else versions.current(location(named, config.storage))
    )
    embedding = config.embedding
    try:
        return embedding_options(
            model,
            backend=backend or embedding.backend,
            precision=embedding.precision,
            threads=threads,
            batch_tokens=embedding.batch_tokens,
            dimensions=embedding.dimensions,
        )
    except InputError as error:
        if error.key != "embedding.model":
            raise
        raise InputError(MODEL, error.problem, error.remedy) from None


def prompts_of(options: EmbeddingOptions) -> Prompts:
    """The prompts of the model."""
    return read_prompts(local_folder(options.model))


def plan_of(config: Config, options: EmbeddingOptions) -> Plan:
    """What a table is to follow from.

    Raises:
        InputError: An input is not there.
    """
    asked = config.mining.model_dump(mode="json")
    texts = {
        _FORM_KEY: FORM,
        MODEL: options.model_sha256,
        **stamps(config),
        **{f"mining.{name}": asked[name] for name in _OF_TEXTS},
        # Files of documents are larger for an index.
        "mining.search": asked["search"],
        "embedding.backend": config.embedding.backend,
        "embedding.precision": config.embedding.precision,
        "embedding.batch_tokens": config.embedding.batch_tokens,
        "embedding.dimensions": options.dimensions,
    }
    names = [name for name in MiningSettings.model_fields if f"mining.{name}" not in texts]
    negatives = {f"mining.{name}": asked[name] for name in names if name not in _OWN}
    return Plan(texts, negatives, options.backend, options.precision)


def finished(config: Config, plan: Plan) -> bool:
    """Whether the table is there already, of the same.

    Raises:
        InputError: The folder holds other files, or a table of something else that may not be
            replaced.
    """
    folder = output_folder(config)
    there = versions.current(folder)
    check_places(OUTPUT, folder, NEGATIVES)
    known = read_plan(there)
    if known is None or config.mining.overwrite:
        return False
    other = plan.differing(known)
    again = "set mining.overwrite=true to make it again, or name another mining.output"
    if other == _FORM_KEY:
        raise InputError(OUTPUT, f"{folder} was made by another release", again)
    if other is not None:
        raise InputError(other, f"{folder} was made with another value of it", again)
    if not plan.is_dated:
        problem = f"whether they have changed since {folder} was made cannot be known"
        raise InputError(INPUTS, problem, again)
    return True


def begin(folder: Location, plan: Plan) -> tuple[Location, Plan]:
    """Where a table is made: one that was begun goes on, with the vectors that it has.

    Args:
        folder: The place of the table; no other job works there.
        plan: What it is to follow from.

    Returns:
        The folder, and the plan, with the backend and the precision of what is there.
    """
    for place in begun_folders(folder):
        known = read_plan(place)
        if known is None or known.texts != plan.texts:
            continue
        plan = replace(plan, backend=known.backend, precision=known.precision)
        if known.negatives != plan.negatives:
            (place / MANIFEST_FILE).unlink(missing_ok=True)
            for file in listed(place, "part-*.parquet"):
                file.unlink()
            write_plan(place, plan)
        logger.info("mining: going on with what %s holds", place)
        return place, plan
    discard_begun(folder)
    with beginning(folder) as begun:
        write_plan(begun.aside, plan)
    return begun.folder, plan
