"""Lines of steps, where this package's trainings have theirs: ``metrics.jsonl`` of the run."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.lanes.files import LaneManifest
from pipelines.settings import Config


@dataclass
class StepLines:
    """Writes a line for each step.

    Attributes:
        path: The file.
        examples: Of a step, over all workers.
        tokens: Of an example, on average.
    """

    path: Location
    examples: int
    tokens: float
    _began: float = field(default=0.0, init=False)
    _last: float = field(default=0.0, init=False)

    @classmethod
    def of(cls, config: Config) -> StepLines:
        """Those of a run."""
        manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
        return cls(
            path=RunFolder.of(config).step_metrics,
            examples=step_examples(config, manifest),
            # A peer's batches are random: on average their texts are as long as ours.
            tokens=manifest.tokens / manifest.placed,
        )

    def begin(self, at: float | None = None) -> None:
        """The first step begins.

        Args:
            at: When, by ``time.monotonic``, which all processes of a machine share; now by default.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._began = self._last = time.monotonic() if at is None else at

    def add(self, step: int, loss: float, at: float | None = None) -> None:
        """A step is done.

        Args:
            step: Its number, from 1.
            loss: Of it.
            at: When, as in :meth:`begin`.
        """
        now = time.monotonic() if at is None else at
        rate = self.examples / max(now - self._last, 1e-9)
        self._last = now
        line = {
            "step": step,
            "seconds": now - self._began,
            "loss": loss,
            "examples_per_second": rate,
            "tokens_per_second": rate * self.tokens,
            "workers": [],
        }
        storage.add_line(self.path, json.dumps(line))


def step_examples(config: Config, manifest: LaneManifest) -> int:
    """Examples of a step, over all workers."""
    return manifest.granule * config.training.granules_per_step
