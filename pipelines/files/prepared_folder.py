"""The layout of a preparation's folder, `prepared.folder`.

A stage writes its folder aside, and then replaces the previous one. So each stage has its own
class, for a folder under either name.
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
"""The stages in order, each with the stages that it is made of."""
AGAIN = "Run `sentence-pipelines prepare` with the same settings first"


@dataclass(frozen=True)
class CorpusFolder:
    """The output of the stage `corpus`."""

    path: Location

    pairs = Entry("pairs.parquet")
    """The training pairs, a folder of Parquet files."""
    queries = Entry("evaluation/queries.parquet")
    """The queries of held-out pairs; absent where none are held out."""
    documents = Entry("evaluation/documents.parquet")
    """The documents of held-out pairs; absent where none are held out."""
    distractors = Entry("evaluation/distractors.parquet")
    """Training documents that held-out queries search too, a folder of Parquet files.

    Absent where there are none, and in corpora of earlier releases.
    """
    quarantine = Entry("quarantine.parquet")
    """Unreadable input, and where it stands in the inputs."""
    funnel = Entry("funnel.json")
    """Rows and pairs that each step of the cleaning has kept and dropped."""
    statistics = Entry("statistics.json")
    """Counts, languages and examples for the report."""
    overlap = Entry("overlap.json")
    """The share of evaluation sets among the pairs (:mod:`pipelines.evaluation.overlap`).

    Absent where no set was named.
    """


@dataclass(frozen=True)
class TokensFolder:
    """The output of the stage `tokens`."""

    path: Location

    examples = Entry("examples.parquet")
    """The pairs as token ids, a folder of Parquet files."""
    tokenizer = Entry("tokenizer")
    lengths = Entry("lengths.json")
    """The number of examples of each length."""
    manifest = Entry("manifest.json")
    """The summary of the stage."""


@dataclass(frozen=True)
class TeacherFolder:
    """The output of the stage `teacher`, if the settings name one."""

    path: Location

    examples = Entry("examples.parquet")
    """The vectors of each example's texts, a folder of Parquet files."""
    manifest = Entry("manifest.json")
    """A :class:`pipelines.lanes.files.TeacherVectors`."""


@dataclass(frozen=True)
class LanesFolder:
    """The output of the stage `lanes`; :mod:`pipelines.lanes.files` knows the files of a lane."""

    path: Location

    manifest = Entry("manifest.json")
    """A :class:`pipelines.lanes.files.LaneManifest`."""


@dataclass(frozen=True)
class PreparedFolder:
    """The folder of a preparation."""

    path: Location

    @classmethod
    def of(cls, config: Config) -> PreparedFolder:
        """Return the absolute folder of the settings."""
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
    """Texts for a teacher, and the tables of their vectors (:mod:`pipelines.vectors.teacher`)."""

    @property
    def lanes(self) -> LanesFolder:
        """The token ids as workers read them."""
        return LanesFolder(current(self.path / "lanes"))

    units = Entry("units")
    """The yield of each input file; see :mod:`pipelines.corpus.kept_units`."""
    deleted_keys = Entry("deleted_keys.json")
    """Keys that no corpus holds any more; see :mod:`pipelines.corpus.unit_rows`."""
    stages = Entry("stages.json")
    """The time of each stage, and whether it was kept."""
    run_seconds = Entry("run_seconds.json")
    """The times of the last run on it, by part; see :mod:`pipelines.runs.job_records`."""
    report = Entry("report.html")

    def stage_record(self, stage: str) -> Location:
        """Return the path of a :class:`StageRecord`."""
        return current(self.path / stage) / "stage.json"

    @property
    def deleted_digest(self) -> str | None:
        """Digest of the list of deleted keys; None without deletions."""
        path = self.deleted_keys
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else None

    def name_stages(self) -> None:
        """Name the content of stages of earlier releases, as if in step.

        Without names, a later run of one stage would leave the state of the others unknown.
        """
        made: dict[str, str] = {}
        for stage in BEFORE:
            record = read_stage_record(self.stage_record(stage))
            if record is None:
                continue
            if not record.made:
                # One by one, since an earlier process may have died between two of them.
                deleted = self.deleted_digest if stage == "corpus" else None
                after = {before: made[before] for before in BEFORE[stage] if before in made}
                record = replace(record, made=uuid.uuid4().hex, after=after, deleted=deleted)
                storage.write_json(self.stage_record(stage), asdict(record))
            made[stage] = record.made

    def check_in_step(self) -> None:
        """Refuse a stage made from an earlier content of another.

        A preparation or a deletion that died between two stages leaves them so. Stages of earlier
        releases have no names of their sources, and pass.

        Raises:
            InputError: Training would learn what the corpus no longer holds.
        """
        known = {stage: read_stage_record(self.stage_record(stage)) for stage in BEFORE}
        is_named = any(record and record.made for record in known.values())
        if is_named and known["lanes"] is None and (self.path / "lanes").is_dir():
            raise self._out_of_step("lanes", "tokens")
        # Only sources of the lanes: a teacher of an earlier preparation may lie beside them.
        stages = ["lanes"]
        # The list grows in the loop, from the lanes back to the corpus.
        for stage in stages:
            record = known[stage]
            after = record.after if record else {}
            for before in (name for name in BEFORE[stage] if name in after):
                source = known[before]
                is_same = source is not None and source.made == after[before]
                if (self.path / before).is_dir() and not is_same:
                    raise self._out_of_step(stage, before)
                stages.append(before)
        self.check_deleted()

    def _out_of_step(self, stage: str, before: str) -> InputError:
        return InputError(
            "prepared.folder",
            f"the stage `{stage}` in {self.path} was not made from the present stage `{before}`, "
            "since a preparation did not finish",
            AGAIN,
        )

    def check_deleted(self) -> None:
        """Refuse a corpus with rows of deleted keys.

        Raises:
            InputError: A deletion did not end.
        """
        corpus = read_stage_record(self.stage_record("corpus"))
        if corpus and corpus.made and corpus.deleted != self.deleted_digest:
            raise InputError(
                "prepared.folder",
                f"{self.path} still holds rows of deleted keys, since `delete` did not finish",
                AGAIN,
            )


@dataclass(frozen=True)
class StageRecord:
    """The sources of a stage, and its duration.

    Attributes:
        fingerprint: Of inputs, settings and the stages before; None if unknown.
        made: A unique name of this content; empty in records of earlier releases.
        after: The names of the stages that it was made of.
        deleted: For the corpus; see :attr:`PreparedFolder.deleted_digest`.
    """

    fingerprint: str | None
    seconds: float
    made: str = ""
    after: dict[str, str] = field(default_factory=dict)
    deleted: str | None = None


def read_stage_record(path: Location) -> StageRecord | None:
    """Return the record of a stage; None if the stage did not run, or must run again."""
    try:
        return records.read_if_there(path, StageRecord)
    except DamagedFileError as error:
        logger.warning("%s. Its stage runs again", error)
        return None
