"""Ownership of folders: commands delete only files of commands.

A folder of ours has a mark, a record of our command: a JSON file with certain keys. All other names
inside it belong to the user. Before a job writes, :func:`check_ours` refuses a folder without a
mark, and the user's files in a folder about to be replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from pipelines.errors import InputError
from pipelines.files import locks, storage
from pipelines.files.locations import Location, RemotePath, fits
from pipelines.files.run_folder import MODEL, RUN_FILES, RunFolder
from pipelines.files.versions import POINTER, current, is_version

PROBE = ".probe-"
"""Prefix of the files that test a store."""
_SHOWN = 3
# What Spark, Databricks, EMR, mounts and desktops leave beside the files that are written.
_BY_SYSTEMS = (
    *("_SUCCESS", "_temporary", "_started_*", "_committed_*", ".*.crc", "*_$folder$"),
    *(".nfs*", ".fuse_hidden*", "lost+found"),
    *(".DS_Store", "._*", "Thumbs.db", "desktop.ini"),
)
# A user's file with the name of a record may be of any size.
_MOST_BYTES = 64 << 20

_TABLE = (
    *("part-*.parquet", "_plan.json", "_manifest.json", "_merged.json", "_deleted.json"),
    *("_input/part-*", "_attempts/**", "_kept/*.parquet", "_index/index.json", "_index/part-*"),
    *("_changes/*.parquet", "_calibration.safetensors"),
)
_UNITS = ("[0-9]*/rows/part-*", "[0-9]*/totals.parquet", "[0-9]*/sources.json")


def _below(folder: str, patterns: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{folder}/{pattern}" for pattern in patterns)


@dataclass(frozen=True)
class Kind:
    """A kind of folder, written by one command.

    Attributes:
        files: The command's files there: relative paths, whose parts may be patterns.
        marks: Records with their keys; one is enough. A folder beside one of ours has none.
        parts: Subfolders with marks of their own, without which nothing in them is ours.
        unmarked: Files that appear before the mark.
    """

    files: tuple[str, ...]
    marks: Mapping[str, tuple[str, ...]]
    parts: tuple[str, ...] = ()
    unmarked: tuple[str, ...] = ()
    taken: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        taken = frozenset(pattern.partition("/")[0] for pattern in self.files)
        object.__setattr__(self, "taken", taken)

    def writes(self, parts: Sequence[str], *, is_folder: bool) -> bool:
        """Return whether a file, or an empty folder, may be the command's."""
        return any(_is_named(parts, pattern.split("/"), is_folder) for pattern in self.files)


_STAGE = ("fingerprint", "seconds")
PREPARED = Kind(
    files=(
        *("stages.json", "deleted_keys.json", "run_seconds.json", "report.html", "overlap.json"),
        *(
            "corpus/stage.json",
            "corpus/funnel.json",
            "corpus/statistics.json",
            "corpus/overlap.json",
        ),
        *("corpus/*.parquet", "corpus/*.parquet/part-*"),
        *("corpus/evaluation/*.parquet", "corpus/evaluation/*.parquet/part-*"),
        *("tokens/stage.json", "tokens/manifest.json", "tokens/lengths.json"),
        *("tokens/examples.parquet/part-*", *_below("tokens/tokenizer", MODEL)),
        *("teacher/stage.json", "teacher/manifest.json", "teacher/examples.parquet/part-*"),
        *("lanes/stage.json", "lanes/manifest.json"),
        *("lanes/lane-*/part-*.arrow", "lanes/lane-*/granules.npy"),
        *_below("units", _UNITS),
        *_below("units/sources/*", _UNITS),
        *("teacher_texts/*/texts/corpus.json", "teacher_texts/*/texts/rows.parquet/part-*"),
        *_below("teacher_texts/*/vectors", _TABLE),
        *_below("teacher_texts/*/.vectors.next", _TABLE),
        "teacher_texts/*/.vectors.lock",
    ),
    # A stage that was killed before it had its first record has the second.
    marks={
        "corpus/stage.json": _STAGE,
        "corpus/funnel.json": ("level", "kind", "rows"),
        "tokens/stage.json": _STAGE,
        "tokens/manifest.json": ("examples",),
        "teacher/stage.json": _STAGE,
        "teacher/manifest.json": ("width", "precision", "source"),
        "lanes/stage.json": _STAGE,
        "lanes/manifest.json": ("granule", "lanes"),
        "stages.json": ("stage", "seconds", "kept"),
        "deleted_keys.json": ("column", "keys"),
    },
    parts=("corpus", "tokens", "teacher", "lanes"),
    unmarked=("units",),
)
"""The output of a preparation."""

RUN = Kind(
    files=RUN_FILES,
    marks={
        "environment.json": ("sentence-pipelines",),
        "checkpoints/plan.json": ("training.seed",),
    },
)
"""The output of a run."""

MEASURED = Kind(
    files=(
        *("metrics.json", "evaluations.jsonl", "observations.parquet", "samples.json"),
        *("report.html", "jobs.json"),
    ),
    marks={**RUN.marks, "jobs.json": ("jobs",)},
)
"""The output of an evaluation beside a model, either a run's or one that was put there."""

FITTED = Kind(
    files=("pairs.json", "pairs/part-*"),
    # Earlier releases have written no record of their own.
    marks={
        "pairs.json": ("columns",),
        **{f"prepared/{name}": keys for name, keys in PREPARED.marks.items()},
    },
)
"""The output of an estimator in its work folder, beside a preparation and a run."""

OUTCOMES = Kind(files=("*-*.json",), marks={})
"""Outcomes of a scheduler's jobs, beside a run."""

TABLE = Kind(files=_TABLE, marks={"_plan.json": ("identity", "parts")})
"""A table of vectors."""

INDEX = Kind(files=("index.json", "*.usearch"), marks={})
"""An index in a folder of vectors, either a table or other files."""

NEGATIVES = Kind(
    files=("part-*.parquet", "_mining.json", "_manifest.json", "_work/**", "_attempts/**"),
    marks={"_mining.json": ("texts", "negatives")},
)
"""A table of pairs with mined negatives."""

QUESTIONS = Kind(
    files=(
        *("part-*.parquet", "_asking.json", "_manifest.json", "_answers/part-*.parquet"),
        *("_answers/_attempts/**", "_answers/_kept/part-*.parquet", "_work/**", "_attempts/**"),
    ),
    marks={"_asking.json": ("inputs", "replies")},
)
"""A table of questions about documents."""

SCORES = Kind(
    files=("part-*.parquet", "_scoring.json", "_manifest.json", "_input/part-*", "_attempts/**"),
    marks={"_scoring.json": ("identity", "texts", "parts")},
)
"""A table of pairs with a teacher's scores."""

VERSION = Kind(
    files=(*MODEL, "promotion.json", "observations.parquet"),
    marks={"promotion.json": ("run", "replaces")},
)
"""A promoted model."""

EXPORT = Kind(
    files=(
        *(*MODEL, "export.json", "onnx/model.onnx", "onnx/model.onnx_data"),
        *("onnx/model_quantized.onnx", "openvino/openvino_model.xml"),
        *("openvino/openvino_model.bin", "query_[0-9]_[A-Z]*/**", "document_[0-9]_[A-Z]*/**"),
    ),
    marks={"export.json": ("model_digest", "runtime")},
)
"""A model in the form of another runtime."""


def is_ours(folder: Location, kind: Kind) -> bool:
    """Return whether a folder has a mark of a kind."""
    return any(_has_keys(folder, name, keys) for name, keys in kind.marks.items())


def is_run(run: RunFolder) -> bool:
    """Return whether a run has begun there, by its record: other tools use the same file names."""
    is_whole = all(path.exists() for path in (*run.marks, run.checkpoints))
    return is_whole and is_ours(run.path, RUN)


def foreign(folder: Location, kind: Kind, *, whole: bool) -> list[str]:
    """Return the sorted relative paths of the user's files and folders.

    With ``whole``, all of the folder is about to go. Otherwise a folder of ours may hold more,
    beside the command's files.
    """
    if not kind.marks or is_ours(folder, kind):
        return _foreign_in_ours(folder, kind, whole=whole)
    return sorted(
        {
            parts[0]
            for parts, is_folder in _paths(folder)
            if parts[0] not in kind.unmarked or not kind.writes(parts, is_folder=is_folder)
        }
    )


def check_ours(key: str, folder: Location, kind: Kind, *, whole: bool) -> None:
    """Refuse a folder if its takeover might cost the user a file.

    Raises:
        InputError: It is a file, or a link in need of replacement, or holds other files.
    """
    if whole and folder.is_symlink():
        raise InputError(key, f"{folder} is a link", f"Name {folder.resolve()}")
    if folder.exists() and not folder.is_dir():
        raise InputError(key, f"{folder} is a file", "Name a folder")
    if found := foreign(folder, kind, whole=whole):
        raise holds_other_files(key, folder, found)


def holds_other_files(key: str, folder: Location, found: Sequence[str]) -> InputError:
    """Return the error of a folder with files of the user."""
    problem = f"{folder} holds other files ({shown(found)})"
    return InputError(key, problem, "Move them elsewhere, or name an empty folder")


def check_free(key: str, folder: Location, kind: Kind) -> None:
    """Refuse a folder with files in the way of a command; other files may stay.

    Raises:
        InputError: The folder is not ours and holds such files, or the user's are among them.
    """
    if is_ours(folder, kind):
        found = foreign(folder, kind, whole=False)
    else:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        found = sorted(name for name in names if _is_asked(folder, name, kind.taken))
    if found:
        raise holds_other_files(key, folder, found)


def shown(paths: Sequence[str]) -> str:
    """Return the first few of the paths found, for a message."""
    hidden = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {hidden} more" if hidden > 0 else "")


def _foreign_in_ours(folder: Location, kind: Kind, *, whole: bool) -> list[str]:
    marked = {
        name.partition("/")[0] for name, keys in kind.marks.items() if _has_keys(folder, name, keys)
    }
    found = []
    for parts, is_folder in _paths(folder, None if whole else kind.taken):
        without_mark = parts[0] in kind.parts and parts[0] not in marked
        if without_mark or not kind.writes(parts, is_folder=is_folder):
            found.append("/".join(parts))
    return sorted(found)


def _paths(
    folder: Location, taken: frozenset[str] | None = None
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the files and empty folders below a folder, each with whether it is a folder.

    Links count as files. Leaves out the auxiliary files of folder storage and of Spark.
    """
    if isinstance(folder, RemotePath):
        for parts in _paths_in_store(folder):
            if parts and not any(map(_is_of_storage, parts)) and _is_asked(folder, parts[0], taken):
                yield parts, False
        return
    for path in _listed(folder):
        if not _is_of_storage(path.name) and _is_asked(folder, path.name, taken):
            yield from _paths_below(path, (path.name,))


def _paths_in_store(folder: RemotePath) -> Iterator[tuple[str, ...]]:
    """Yield relative paths; a folder's current version counts without its name."""
    pointed: dict[tuple[str, ...], str] = {}
    for name, status in folder.entries():
        parts = tuple(name.split("/"))
        depth = next((depth for depth, part in enumerate(parts) if is_version(part)), None)
        if status is None:
            continue
        if depth is None:
            yield parts
            continue
        place = parts[:depth]
        if place not in pointed:
            pointed[place] = current(folder.joinpath(*place)).name
        if parts[depth] == pointed[place]:
            yield place + parts[depth + 1 :]


def _paths_below(path: Path, parts: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bool]]:
    if path.is_symlink() or not path.is_dir():
        yield parts, False
        return
    # A folder of another user that cannot be read is not ours to delete either.
    below = _listed(path) if os.access(path, os.R_OK | os.X_OK) else []
    if not below:
        yield parts, True
    for found in below:
        if not _is_of_storage(found.name):
            yield from _paths_below(found, (*parts, found.name))


def _listed(folder: Path) -> list[Path]:
    """Return a folder's content; nothing if a job has just replaced it."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_asked(folder: Location, name: str, taken: frozenset[str] | None) -> bool:
    if taken is None or name in taken:
        return not locks.is_lock(name)
    # Where letters of both cases are the same, `Corpus` goes when `corpus` is replaced.
    return (
        isinstance(folder, Path)
        and name.lower() in taken
        and (folder / name.lower()).exists()
        and (folder / name.lower()).samefile(folder / name)
    )


def _is_of_storage(name: str) -> bool:
    return (
        storage.is_aside(name)
        or locks.is_left(name)
        or name == POINTER
        or name.startswith(PROBE)
        or any(fnmatchcase(name, pattern) for pattern in _BY_SYSTEMS)
    )


def _is_named(parts: Sequence[str], pattern: Sequence[str], is_folder: bool) -> bool:
    if not is_folder:
        return fits(parts, pattern)
    return any(fits(parts, pattern[:depth]) for depth in range(1, len(pattern) + 1))


def _has_keys(folder: Location, name: str, keys: Sequence[str]) -> bool:
    """Return whether a record is there, an object or a list of objects, with some keys."""
    place = current(folder)
    *folders, file = name.split("/")
    for part in folders:
        place = current(place / part)
    path = place / file
    # A user's file may be no JSON, or nested too deeply for the parser.
    with suppress(OSError, ValueError, RecursionError):
        if path.is_file() and path.stat().st_size <= _MOST_BYTES:
            found = json.loads(path.read_text(encoding="utf-8"))
            records = found if isinstance(found, list) else [found]
            return bool(records) and all(
                isinstance(record, dict) and set(keys) <= record.keys() for record in records
            )
    return False
