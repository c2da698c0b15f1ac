"""Where everything is in the folder of a preparation, `prepared.folder`.

A stage writes its folder aside and renames it, so each of the three has a value of its own, which
stands for a folder under either name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipelines.settings import Config


@dataclass(frozen=True)
class CorpusFolder:
    """What the stage `corpus` writes."""

    path: Path

    @property
    def pairs(self) -> Path:
        """The pairs for training, a folder of Parquet files."""
        return self.path / "pairs.parquet"

    @property
    def queries(self) -> Path:
        """The queries of the pairs that are held out; not there where none are."""
        return self.path / "evaluation" / "queries.parquet"

    @property
    def documents(self) -> Path:
        """The documents of the pairs that are held out; not there where none are."""
        return self.path / "evaluation" / "documents.parquet"

    @property
    def quarantine(self) -> Path:
        """What could not be read, and where it stands in the inputs."""
        return self.path / "quarantine.parquet"

    @property
    def funnel(self) -> Path:
        """How many rows and pairs each step of the cleaning has kept and dropped."""
        return self.path / "funnel.json"

    @property
    def statistics(self) -> Path:
        """Counts, languages and examples for the report."""
        return self.path / "statistics.json"


@dataclass(frozen=True)
class TokensFolder:
    """What the stage `tokens` writes."""

    path: Path

    @property
    def examples(self) -> Path:
        """The pairs as token ids, a folder of Parquet files."""
        return self.path / "examples.parquet"

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer."""
        return self.path / "tokenizer"

    @property
    def lengths(self) -> Path:
        """How many examples have each length."""
        return self.path / "lengths.json"

    @property
    def manifest(self) -> Path:
        """The summary of the stage."""
        return self.path / "manifest.json"


@dataclass(frozen=True)
class LanesFolder:
    """What the stage `lanes` writes; :mod:`pipelines.lanes.files` knows the files of a lane."""

    path: Path

    @property
    def manifest(self) -> Path:
        """Of :class:`pipelines.lanes.files.LaneManifest`."""
        return self.path / "manifest.json"


@dataclass(frozen=True)
class PreparedFolder:
    """The folder of a preparation."""

    path: Path

    @classmethod
    def of(cls, config: Config) -> PreparedFolder:
        """The one that the settings name, absolute."""
        return cls(Path(config.prepared.folder).absolute())

    @property
    def corpus(self) -> CorpusFolder:
        """The cleaned pairs."""
        return CorpusFolder(self.path / "corpus")

    @property
    def tokens(self) -> TokensFolder:
        """The pairs as token ids."""
        return TokensFolder(self.path / "tokens")

    @property
    def lanes(self) -> LanesFolder:
        """The token ids as workers read them."""
        return LanesFolder(self.path / "lanes")

    @property
    def units(self) -> Path:
        """What each input file gave; see :mod:`pipelines.corpus.kept_units.generations`."""
        return self.path / "units"

    @property
    def stages(self) -> Path:
        """How long each stage took, and whether it was kept."""
        return self.path / "stages.json"

    @property
    def run_seconds(self) -> Path:
        """How long parts of the last run on it took; see :mod:`pipelines.runs.stage_seconds`."""
        return self.path / "run_seconds.json"

    @property
    def report(self) -> Path:
        """The report of the corpus."""
        return self.path / "report.html"

    def stage_record(self, stage: str) -> Path:
        """What the content of a stage's folder follows from; see :mod:`pipelines.preparation`."""
        return self.path / stage / "stage.json"
