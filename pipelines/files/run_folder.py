"""Where everything is in the folder of a run, `run.folder`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipelines.settings import Config


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run. Which of these are there depends on how far the run has come."""

    path: Path

    @classmethod
    def of(cls, config: Config) -> RunFolder:
        """The one that the settings name, absolute."""
        return cls(Path(config.run.folder).absolute())

    @property
    def marks(self) -> tuple[Path, ...]:
        """What a folder must hold, beside checkpoints, to be taken for that of a run."""
        return (self.environment, self.config)

    @property
    def contents(self) -> tuple[Path, ...]:
        """All else that a run writes, but for checkpoints."""
        return (
            self.tokens,
            self.step_metrics,
            self.metrics,
            self.history,
            self.restarts,
            self.evaluations,
            self.promotion,
            self.samples,
            self.report,
            self.start,
            self.model,
            self.snapshots,
            self.tracking,
            self.tensorboard,
        )

    @property
    def config(self) -> Path:
        """The settings of the run, without secrets."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """Versions and machine of the driver."""
        return self.path / "environment.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints; see :mod:`pipelines.runs.checkpoint`."""
        return self.path / "checkpoints"

    @property
    def plan(self) -> Path:
        """What the steps follow from, which a run that is resumed may not change."""
        return self.checkpoints / "plan.json"

    @property
    def history(self) -> Path:
        """Since which step settings hold that may change while a run goes on."""
        return self.path / "history.json"

    @property
    def restarts(self) -> Path:
        """When workers were lost, why, and where the run went on."""
        return self.path / "restarts.json"

    @property
    def tokens(self) -> Path:
        """The manifest of the tokens that the run is trained on."""
        return self.path / "tokens.json"

    @property
    def step_metrics(self) -> Path:
        """Loss, rates and times of the steps, a line for each few of them."""
        return self.path / "metrics.jsonl"

    @property
    def metrics(self) -> Path:
        """What came of the run: figures of the training and of the evaluations."""
        return self.path / "metrics.json"

    @property
    def evaluations(self) -> Path:
        """What was measured after how many steps."""
        return self.path / "evaluations.jsonl"

    @property
    def samples(self) -> Path:
        """Held-out pairs and their neighbours, for the report."""
        return self.path / "samples.json"

    @property
    def report(self) -> Path:
        """The report of the run."""
        return self.path / "report.html"

    @property
    def start(self) -> Path:
        """The folder of the encoder that the training began with."""
        return self.path / "start"

    @property
    def model(self) -> Path:
        """The folder of the trained encoder."""
        return self.path / "model"

    @property
    def promotion(self) -> Path:
        """What the last promotion of the model has decided."""
        return self.path / "promotion.json"

    @property
    def snapshots(self) -> Path:
        """What checkpoints are measured on while training goes on."""
        return self.path / "evaluation"

    @property
    def tracking(self) -> Path:
        """State and logs of trackers."""
        return self.path / "tracking"

    @property
    def tensorboard(self) -> Path:
        """Event files of TensorBoard."""
        return self.path / "tensorboard"
