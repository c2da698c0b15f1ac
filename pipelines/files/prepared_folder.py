"""Where everything is in the folder of a preparation, `prepared.folder`.

A stage writes its folder aside, and then it takes the place of the one before, so each of them
has a value of its own, which stands for a folder under either name.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from pipelines.errors import DamagedFileError, InputError
from pipelines.files import records, storage
from pipelines.files.locations import Location, location
from pipelines.files.versions import Entry, current
from pipelines.settings import Config

logger = logging.getLogger(__name__)


BEFORE: Mapping[str, tuple[str, ...]] = {
    "corpus": (),
    "tokens": ("corpus",),
    "teacher": ("corpus",),
    "lanes": ("tokens", "teacher"),
}
"""The stages in their order, with those whose content each is made of."""
AGAIN = "run `sentence-pipelines prepare` with the same settings first"


@dataclass(frozen=True)
class CorpusFolder:
    """What the stage `corpus` writes."""

    path: Location

    pairs = Entry("pairs.parquet")
    """The pairs for training, a folder of Parquet files."""
    queries = Entry("evaluation/queries.parquet")
    """The queries of the pairs that are held out; not there where none are."""
    documents = Entry("evaluation/documents.parquet")
    """The documents of the pairs that are held out; not there where none are."""
    distractors = Entry("evaluation/distractors.parquet")
    """Documents for training that held-out queries search too, a folder of Parquet files; not
    there where none are, nor in corpora of earlier releases."""
    quarantine = Entry("quarantine.parquet")
    """What could not be read, and where it stands in the inputs."""
    funnel = Entry("funnel.json")
    """How many rows and pairs each step of the cleaning has kept and dropped."""
    statistics = Entry("statistics.json")
    """Counts, languages and examples for the report."""
    overlap = Entry("overlap.json")
    """How much of the evaluation sets is among the pairs; see
    :mod:`pipelines.evaluation.overlap`. Not there where no set was named."""


@dataclass(frozen=True)
class TokensFolder:
    """What the stage `tokens` writes."""

    path: Location

    examples = Entry("examples.parquet")
    """The pairs as token ids, a folder of Parquet files."""
    tokenizer = Entry("tokenizer")
    """The folder of the tokenizer."""
    lengths = Entry("lengths.json")
    """How many examples have each length."""
    manifest = Entry("manifest.json")
    """The summary of the stage."""


@dataclass(frozen=True)
class TeacherFolder:
    """What the stage `teacher` writes, where the settings name a teacher."""

    path: Location

    examples = Entry("examples.parquet")
    """The vectors of each example's texts, a folder of Parquet files."""
    manifest = Entry("manifest.json")
    """Of :class:`pipelines.lanes.files.TeacherVectors`."""


@dataclass(frozen=True)
class LanesFolder:
    """What the stage `lanes` writes; :mod:`pipelines.lanes.files` knows the files of a lane."""

    path: Location

    manifest = Entry("manifest.json")
    """Of :class:`pipelines.lanes.files.LaneManifest`."""


@dataclass(frozen=True)
class PreparedFolder:
    """The folder of a preparation."""

    path: Location

    @classmethod
    def of(cls, config: Config) -> PreparedFolder:
        """Return the one that the settings name, absolute."""
        return cls(location(config.prepared.folder, config.storage).absolute())

    @property
    def corpus(self) -> CorpusFolder:
        """The cleaned pairs."""
        return CorpusFolder(current(self.path / "corpus"))

    @property
    def tokens(self) -> TokensFolder:
        """The pairs as token ids."""
        return TokensFolder(current(self.path / "tokens"))

    @property
    def teacher(self) -> TeacherFolder:
        """The vectors of a teacher."""
        return TeacherFolder(current(self.path / "teacher"))

    teacher_texts = Entry("teacher_texts")
    """Texts that a teacher is asked for, and the tables of their vectors; see
    :mod:`pipelines.vectors.teacher`."""

    @property
    def lanes(self) -> LanesFolder:
        """The token ids as workers read them."""
        return LanesFolder(current(self.path / "lanes"))

    units = Entry("units")
    """What each input file gave; see :mod:`pipelines.corpus.kept_units`."""
    deleted_keys = Entry("deleted_keys.json")
    """What is in no corpus any more; see :mod:`pipelines.corpus.unit_rows`."""
    stages = Entry("stages.json")
    """How long each stage took, and whether it was kept."""
    run_seconds = Entry("run_seconds.json")
    """How long parts of the last run on it took; see :mod:`pipelines.runs.job_records`."""
    report = Entry("report.html")
    """The report of the corpus."""

    def stage_record(self, stage: str) -> Location:
        """Return the :class:`StageRecord` of a stage."""
        return current(self.path / stage) / "stage.json"

    @property
    def deleted_digest(self) -> str | None:
        """Of the list of deleted keys; None where nothing was deleted."""
        path = self.deleted_keys
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else None

    def name_stages(self) -> None:
        """Name the content of stages of earlier releases, which are taken to be in step.

        Otherwise nobody could tell, after one of them is made anew, which others are not.
        """
        made: dict[str, str] = {}
        for stage in BEFORE:
            record = read_stage_record(self.stage_record(stage))
            if record is None:
                continue
            if not record.made:
                # One by one: a process may have been killed between two of them.
                deleted = self.deleted_digest if stage == "corpus" else None
                after = {one: made[one] for one in BEFORE[stage] if one in made}
                record = replace(record, made=uuid.uuid4().hex, after=after, deleted=deleted)
                storage.write_json(self.stage_record(stage), asdict(record))
            made[stage] = record.made

    def check_in_step(self) -> None:
        """Refuse stages of which one was made of another one's content of before.

        A preparation, or a deletion, that died between two stages leaves them so. What earlier
        releases have written does not say what it was made of, and passes.

        Raises:
            InputError: Training would learn what is not in the corpus any more.
        """
        known = {stage: read_stage_record(self.stage_record(stage)) for stage in BEFORE}
        is_named = any(record and record.made for record in known.values())
        if is_named and known["lanes"] is None and (self.path / "lanes").is_dir():
            raise self._out_of_step("lanes", "tokens")
        # Whatever the lanes are made of: a teacher of an earlier preparation may be there besides.
        stages = ["lanes"]
        for stage in stages:
            record = known[stage]
            after = record.after if record else {}
            for before in (one for one in BEFORE[stage] if one in after):
                there = known[before]
                is_same = there is not None and there.made == after[before]
                if (self.path / before).is_dir() and not is_same:
                    raise self._out_of_step(stage, before)
                stages.append(before)
        self.check_deleted()

    def _out_of_step(self, stage: str, before: str) -> InputError:
        return InputError(
            "prepared.folder",
            f"the {stage} in {self.path} are not of the {before} that is there now, since a "
            "preparation did not end",
            AGAIN,
        )

    def check_deleted(self) -> None:
        """Refuse a corpus that still has rows of keys that were deleted.

        Raises:
            InputError: A deletion did not end.
        """
        corpus = read_stage_record(self.stage_record("corpus"))
        if corpus and corpus.made and corpus.deleted != self.deleted_digest:
            raise InputError(
                "prepared.folder",
                f"rows of {self.path} were deleted, and are still in it, since `delete` did not "
                "end",
                AGAIN,
            )


@dataclass(frozen=True)
class StageRecord:
    """What a stage was made from, and how long it took.

    Attributes:
        fingerprint: Of inputs, settings and the stages before; None where that is not known.
        made: A name of this content alone; empty in records of earlier releases.
        after: The same of the stages that it was made of.
        deleted: Of the corpus: see :attr:`PreparedFolder.deleted_digest`.
    """

    fingerprint: str | None
    seconds: float
    made: str = ""
    after: dict[str, str] = field(default_factory=dict)
    deleted: str | None = None


def read_stage_record(path: Location) -> StageRecord | None:
    """Return the record of a stage; None of one that was not run, or must be run again."""
    try:
        return records.read_if_there(path, StageRecord)
    except DamagedFileError as error:
        logger.warning("%s; its stage is run again", error)
        return None
