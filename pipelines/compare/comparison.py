"""The common ground of the compared strategies: lanes, settings, a folder of readings."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pipelines.compare.prediction import scheme_of
from pipelines.compare.strategy import OF_PAPER, Strategy
from pipelines.compare.trial import Reading, reading_of, settled_steps
from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.storage import LineLog
from pipelines.jobs.prepare import prepare
from pipelines.lanes.files import LaneManifest
from pipelines.models.folder import start_encoder
from pipelines.models.spec import EncoderSpec
from pipelines.settings import Config
from pipelines.tokens.start import start_folder

logger = logging.getLogger(__name__)

FEWEST_STEPS = 5
_ENOUGH_EPOCHS = 100_000
_OF_STRATEGIES = {"workers", *OF_PAPER[0].training}
"""Keys of `training` that differ between strategies."""


CAPTIONS = "*captions-en-train.parquet"


def prepared(
    config: Config, data: str | None, change: Callable[[Config], Config] = lambda config: config
) -> Config:
    """Return the configuration with its lanes prepared.

    Args:
        data: A prepared folder, or a folder with captions (Parquet, columns `image` and `text`) at
            any depth; None for the embedded default.
        change: A function of the settings with the data, called before the preparation.

    Raises:
        InputError: The folder holds neither, or its lanes do not fit the changed settings.
    """
    named = Path(data).absolute() if data is not None else None
    holds_lanes = named is not None and PreparedFolder(named).lanes.manifest.is_file()
    if named is not None:
        config = _with_data(config, named)
    changed = change(config)
    if not holds_lanes:
        # Unchanged settings reuse an earlier preparation.
        prepare(changed)
    elif changed.prepared != config.prepared:
        raise InputError(
            "--data",
            f"{data} holds lanes, and this workload trains on others",
            "Name the folder of the texts, or leave --data out for the embedded default",
        )
    return changed


def _with_data(config: Config, folder: Path) -> Config:
    if PreparedFolder(folder).lanes.manifest.is_file():
        return _replaced(config, "prepared", folder=str(folder))
    captions = sorted(folder.rglob(CAPTIONS))
    if not captions:
        raise InputError(
            "--data",
            f"{folder} holds neither lanes nor {CAPTIONS}",
            "Name a prepared folder, or leave --data out for the embedded default",
        )
    config = _replaced(
        config,
        "corpus",
        inputs=(str(captions[0]),),
        format="parquet",
        pairs="group",
        group_column="image",
        text_column="text",
    )
    return _replaced(config, "prepared", folder=f"{config.prepared.folder}-captions")


def _replaced(config: Config, section: str, **values: object) -> Config:
    changed = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: changed})


@dataclass(frozen=True)
class Comparison:
    """The subject of a comparison.

    Attributes:
        config: Of all trainings.
        strategies: The measurable ones on this machine.
        counts: Numbers of workers.
        missing: The reasons for the other strategies, by name.
        compared: The common properties of all readings of a folder.
    """

    config: Config
    strategies: Sequence[Strategy]
    counts: Sequence[int]
    missing: Mapping[str, str]
    spec: EncoderSpec
    manifest: LaneManifest
    compared: Mapping[str, Any]

    @classmethod
    def of(
        cls, config: Config, chosen: Sequence[Strategy], counts: Sequence[int], steps: int
    ) -> Comparison:
        """Return the comparison of some strategies on prepared lanes.

        Raises:
            InputError: The steps are too few for a rate.
        """
        manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
        spec, _ = start_encoder(config, manifest.vocabulary)
        config = _shared_settings(config, counts, steps)
        has_negatives = bool(manifest.negatives)
        missing = {
            strategy.name: strategy.missing(config, has_negatives=has_negatives)
            for strategy in chosen
        }
        for name, why in missing.items():
            if why:
                logger.info("strategies: %s is left out: %s", name, why)
        strategies = [strategy for strategy in chosen if not missing[strategy.name]]
        _check_steps(config, strategies, steps)
        return cls(
            config,
            strategies,
            counts,
            {name: f"left out: {why}" for name, why in missing.items() if why},
            spec,
            manifest,
            _compared(config, manifest),
        )

    @property
    def step_examples(self) -> int:
        """Return the examples of a step."""
        return self.manifest.granule * self.config.training.granules_per_step

    @property
    def has_pairs(self) -> bool:
        """Return whether held-out pairs can be evaluated."""
        return self.manifest.paired and self.config.corpus.evaluation_share > 0

    @property
    def predicted(self) -> float:
        """Return the share of the tokens with a prediction of their word."""
        objective = self.config.objective
        shares = {"clm": 1.0, "mlm": getattr(objective, "mask_ratio", 0.0)}
        return shares.get(objective.name, 0.0)

    @property
    def text_tokens(self) -> float:
        """Return the mean number of tokens of a text."""
        sides = 1 + self.manifest.paired + self.manifest.negatives
        return self.manifest.tokens / self.manifest.placed / sides

    def trials(self) -> list[tuple[Strategy, int]]:
        """Return each strategy with each of its numbers of workers."""
        return [
            (strategy, workers)
            for strategy in self.strategies
            for workers in ((1,) if strategy.is_alone else self.counts)
        ]


def _shared_settings(config: Config, counts: Sequence[int], steps: int) -> Config:
    """Return the common settings of all strategies."""
    training = {
        # Divisible by each number of workers, so that all trainings make equal steps.
        "granules_per_step": math.lcm(*counts),
        "max_steps": steps,
        "epochs": _ENOUGH_EPOCHS,
        "threads": 1,
        "log_every": 1,
        # Only the last state: the comparison leaves out the time for writing.
        "checkpoint_every": steps,
        "checkpoint_minutes": None,
        "restarts": 0,
        "resume": False,
        "start_seconds": 600,
        "stall_seconds": 600,
        # Neither choose among checkpoints nor end early: every strategy makes all steps.
        "start_share": 0.0,
        "keep_best": None,
        "patience": None,
    }
    evaluation = config.evaluation.model_copy(update={"every_checkpoints": 0})
    changed = config.training.model_copy(update=training)
    return config.model_copy(update={"training": changed, "evaluation": evaluation})


def _check_steps(config: Config, strategies: Sequence[Strategy], steps: int) -> None:
    if steps < FEWEST_STEPS:
        raise InputError(
            "--steps", f"{steps} is too few for a rate", f"Use at least {FEWEST_STEPS}"
        )
    round_steps = config.training.round_steps
    averaging = [strategy.name for strategy in strategies if scheme_of(strategy) == "averaging"]
    if averaging and settled_steps(steps) < round_steps:
        raise InputError(
            "--steps",
            f"{averaging[0]} averages every {round_steps} steps, and of {steps} steps only "
            f"{settled_steps(steps)} count",
            "Use more steps, or a smaller training.round_steps",
        )


def _compared(config: Config, manifest: LaneManifest) -> dict[str, Any]:
    """Return the properties, by key, that comparable readings share."""
    training = config.training.model_dump(mode="json", exclude=_OF_STRATEGIES)
    start = start_folder(config)
    return {
        "lanes": [*manifest.checksums],
        "encoder": config.encoder.model_dump(mode="json"),
        "start": "random" if start is None else storage.digest_folder(start),
        "objective": config.objective.model_dump(mode="json"),
        # A digest: its values may be secret.
        "spark": sha256(config.spark.model_dump_json().encode()).hexdigest()[:16],
        "machine": [platform.node(), os.cpu_count()],
        **{f"training.{key}": value for key, value in training.items()},
    }


READINGS, COMPARED = "readings.jsonl", "comparison.json"


class Record:
    """The readings of a folder; creates it if needed.

    All its readings share `compared`.

    Raises:
        InputError: The folder has readings of another comparison.
    """

    def __init__(self, folder: Path, compared: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / READINGS
        known = folder / COMPARED
        wanted = json.loads(json.dumps(compared))
        if known.is_file():
            found = records.read(known, dict[str, Any])
            differing = [key for key in wanted if found.get(key) != wanted[key]]
            if differing:
                raise InputError(
                    "--output",
                    f"{folder} holds a comparison with other values of {', '.join(differing)}",
                    "Name another folder, or remove this one",
                )
        storage.write_json(known, wanted)
        self._lines = LineLog(self._path)
        # A killed comparison may have left half a line.
        self._lines.keep(
            lambda line: records.read_line(self._path, line.encode(), dict, torn=True) is not None
        )

    def __iter__(self) -> Iterator[Reading]:
        return map(reading_of, records.read_lines(self._path, dict[str, Any], torn=True))

    def add(self, reading: Reading) -> None:
        """Keep a reading at once."""
        self._lines.add(json.dumps(asdict(reading)))
