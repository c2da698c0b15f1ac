"""`delete`: removes the rows of keys from the prepared folder and the table of vectors, for good.

The folder keeps a list of the keys, and the job prepares it again without their rows. It decides
anew on relations between texts (duplicates, pairs, held-out texts, places in the lanes). Each stage
replaces its former folder as a whole. The job skips files without such rows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict
from typing_extensions import TypedDict

from pipelines import progress
from pipelines.corpus.readers.streams import BinaryError, find_encoding
from pipelines.corpus.unit_rows import DELETED, add_deleted_keys, deleted_keys, hash_of, mark_of
from pipelines.errors import InputError, one_line
from pipelines.files import records, storage, versions
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.base import Results, job
from pipelines.jobs.prepare import check_prepared_folder, prepare_stages, shown_stages
from pipelines.progress import say
from pipelines.settings import Config
from pipelines.spark.session import spark_session
from pipelines.vectors.row_deletion import (
    DeletedRows,
    check_table,
    delete_from_table,
    discard_unfinished,
    has_rows_by,
)
from pipelines.vectors.teacher import forget_texts

logger = logging.getLogger(__name__)

_LINE_END = re.compile(r"\r\n|\n|\r")
_MARK = "\ufeff"
_NAMED_KEYS = 20
_KEY_CHARACTERS = 60


class _Statistics(TypedDict, total=False):
    """The statistics of a corpus for this job."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    deleted: list[int]


@dataclass(frozen=True)
class Deletion:
    """The outcome of a deletion.

    Attributes:
        keys: Number of listed keys, earlier ones included.
        rows: Input rows without a place in the corpus, for their keys.
        vectors: Rows removed from the table in `embedding.output`; None if no table has the key
            column.
        unmatched: Keys of this deletion without a row in `corpus.inputs`.
        not_covered: Other places of such texts, or of models trained on them; a line each.
    """

    keys: int
    rows: int
    vectors: int | None
    unmatched: tuple[str, ...]
    not_covered: tuple[str, ...]


@job("deleting", works_in=("prepared.folder",), check=check_prepared_folder, stalls=True)
def delete(config: Config, keys: Sequence[str]) -> Deletion:
    """Remove the rows of keys from `prepared.folder`, and keep them out of it for good.

    `config` is that of the preparation; `keys` are values of `corpus.key_column`, as text.

    Raises:
        InputError: No column has keys, the folder has no corpus, or a stage refuses.
    """
    with progress.job("deleting", shown_stages(config)):
        return _delete(config, keys)


def _delete(config: Config, keys: Sequence[str]) -> Deletion:
    column = config.corpus.key_column
    if column is None:
        raise InputError(
            "corpus.key_column", "`delete` needs it", "Name the column with the owner of a row"
        )
    folder = PreparedFolder.of(config)
    if not folder.corpus.pairs.is_dir():
        problem = f"there is no corpus in {folder.path}"
        raise InputError(
            "prepared.folder", problem, "Name the folder of a preparation, or run `prepare`"
        )
    check_table(config)
    folder.name_stages()
    # The list comes first: after a failure, the next preparation still leaves the rows out.
    listed = add_deleted_keys(folder, column, keys)
    try:
        prepare_stages(config, trains=False)
    except Exception:
        still = "the keys are listed, but their rows stay in %s until a preparation succeeds"
        logger.warning(still, folder.path)
        raise
    # In a store a folder keeps the version before; on NFS a file that was open may be left.
    for stage in (folder.corpus, folder.tokens, folder.teacher, folder.lanes):
        versions.forget_earlier(stage.path)
    forget_texts(config)
    storage.sweep(folder.path)
    rows = records.built(
        folder.corpus.funnel,
        lambda lines: sum(int(line["rows"]) for line in lines if line.get("reason") == DELETED),
    )
    known: _Statistics = records.read(folder.corpus.statistics, _Statistics)
    marks = {*known.get("deleted", [])}
    unmatched = tuple(key for key in dict.fromkeys(keys) if mark_of(hash_of(key)) not in marks)
    vectors = _delete_vectors(config, DeletedRows(column, deleted_keys(folder, column)))
    return Deletion(listed, rows, vectors, unmatched, _not_covered(config, vectors))


def _delete_vectors(config: Config, deleted: DeletedRows) -> int | None:
    if not has_rows_by(config, deleted.column):
        if discard_unfinished(config, deleted.column):
            output = config.embedding.output
            logger.warning("%s: `delete` removed the unfinished table. Run `embed` again", output)
        return None
    session = spark_session(config.for_stage("embed"), needs_context=False)
    return delete_from_table(session, config, deleted)


def _not_covered(config: Config, vectors: int | None) -> tuple[str, ...]:
    table = f"embeddings ({config.embedding.output}): there is no table with the column"
    merged = f"{config.embedding.merge_into}: run `embed` again to remove the rows"
    followed = f"stores with copies of {config.embedding.output}: bring them up to date by its log"
    return (
        "corpus.inputs, corpus.exclude and evaluation files: `delete` does not change your files",
        "earlier models in run folders and in promotion.target: train again",
        "samples.json, report.html and evaluation/ of earlier runs, and their copies in trackers",
        *([table] if vectors is None else []),
        *([followed] if vectors else []),
        *([merged] if config.embedding.merge_into else []),
        f"questions about documents ({config.questions.output}): ask again without the rows",
        f"pairs with hard negatives ({config.mining.output}): mine them again",
        f"pairs with scores ({config.scoring.output}): score them again",
        "other tables of embeddings, and copies in storage.cache_folder after searches",
    )


def read_keys(given: Sequence[str], file: str | None) -> list[str]:
    """Return the keys of a command line and of a file.

    `given` keys count literally. The file is UTF-8, UTF-16 or UTF-32 text with a key on each line.
    Blanks around a key, blank lines, byte order marks and the kind of line ends do not count.

    Raises:
        InputError: There is no key, or the file cannot be read.
    """
    keys = [key for key in given if key.strip()]
    if file is not None:
        found = [line.strip() for line in _LINE_END.split(_text_of(file).replace(_MARK, ""))]
        keys += filter(None, found)
        if not keys:
            raise InputError(
                "--keys",
                f"{file} holds no key",
                "Write a key on each line, or name keys with --key",
            )
    if not keys:
        raise InputError(
            "--key", "the command names no key", "Name keys with --key, or a file with --keys"
        )
    return keys


def _text_of(file: str) -> str:
    """Return the text of a file of keys; only Unicode encodings are detected."""
    remedy = "Name a text file with a key on each line"
    try:
        data = Path(file).read_bytes()
        encoding = find_encoding([data])
        is_unicode = encoding.name.startswith("utf")
        return data.decode(encoding.name if is_unicode else "utf-8")
    except BinaryError:
        raise InputError("--keys", f"{file} holds no text", remedy) from None
    except UnicodeDecodeError as error:
        problem = f"{file} is not UTF-8 at byte {error.start}"
        raise InputError("--keys", problem, "Save it as UTF-8") from None
    except OSError as error:
        raise InputError("--keys", f"{file} cannot be read ({error})", remedy) from None


def command(config: Config, key: Sequence[str] | None, keys: str | None) -> Results:
    """Delete the rows of keys of a command line and of a file, and print the outcome."""
    deletion = delete(config, read_keys(key or (), keys))
    say(f"deleted  {deletion.rows} rows in all, of the {deletion.keys} keys listed so far")
    if deletion.vectors is not None:
        say(f"deleted  {deletion.vectors} rows of {config.embedding.output}")
    if deletion.unmatched:
        say(f"no row   {_first_keys(deletion.unmatched)}")
    for line in deletion.not_covered:
        say(f"not covered  {line}")
    figures = {"rows": deletion.rows, "keys": deletion.keys, "vectors": deletion.vectors}
    return {**figures, "unmatched": len(deletion.unmatched)}


def _first_keys(unmatched: Sequence[str]) -> str:
    """Name the first keys without a row."""
    named = [one_line(key[:_KEY_CHARACTERS]) for key in unmatched[:_NAMED_KEYS]]
    unnamed = len(unmatched) - len(named)
    end = f" and {unnamed} more" if unnamed else ""
    return (
        f"for {len(unmatched)} keys in corpus.inputs: {', '.join(named)}{end}. Compare them with "
        "the values of corpus.key_column."
    )
