"""``history.json`` of a run: how its steps were made, since which step, and where it was to end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.files import records, storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.runs.learning_rate import Horizon
from pipelines.settings import Config
from pipelines.settings.resuming import recorded_settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """Steps that were made with the same settings.

    Attributes:
        step: The first of them.
        last_step: One past the last step of the run, as it was to end then.
        settings: Those that may change while a run goes on, by key.
    """

    step: int
    last_step: int
    settings: dict[str, Any]


def go_on(folder: Location, config: Config, first_step: int, last_step: int) -> tuple[Horizon, ...]:
    """Records the step from which changed settings apply, and logs the changes.

    Args:
        folder: Folder of the run.
        config: What holds from now on.
        first_step: The next step. What is known of it and of later ones is forgotten: they are
            made again.
        last_step: One past the last step.

    Returns:
        Where the run was to end, from the first step on.
    """
    chapters = _read(folder)
    if first_step < last_step:
        before = [chapter for chapter in chapters if chapter.step < first_step]
        settings = dict(recorded_settings(config))
        # A run without a history has been as it is now.
        step = first_step if before else 0
        new = Chapter(step=step, last_step=last_step, settings=settings)
        is_same = before and (before[-1].settings, before[-1].last_step) == (settings, last_step)
        if before and not is_same:
            _log_changes(before[-1], new)
        chapters = before if is_same else [*before, new]
        lines = [asdict(chapter) for chapter in chapters]
        storage.write_json(RunFolder(folder).history, lines, durable=True)
    return _horizons(chapters) or (Horizon(step=0, last_step=last_step),)


def last_step_of(folder: Location) -> int | None:
    """One past the last step of a run, as it was to end when it last went on, where it says."""
    chapters = _read(folder)
    return chapters[-1].last_step if chapters else None


def _horizons(chapters: Sequence[Chapter]) -> tuple[Horizon, ...]:
    """The chapters at which the end of the run was moved, and the first."""
    horizons: list[Horizon] = []
    for chapter in chapters:
        if not horizons or horizons[-1].last_step != chapter.last_step:
            horizons.append(Horizon(step=chapter.step, last_step=chapter.last_step))
    return tuple(horizons)


def _log_changes(before: Chapter, now: Chapter) -> None:
    changed = [
        f"{key} {value} (it was {before.settings.get(key)})"
        for key, value in now.settings.items()
        if value != before.settings.get(key)
    ]
    if changed:
        logger.info("from step %d on: %s", now.step, ", ".join(changed))
    if now.last_step == before.last_step:
        return
    rate = "decays to the new end from where it is"
    if now.step >= before.last_step:
        rate = "rises and decays once more, with a warm-up of its own"
    logger.info(
        "the run ends at step %d instead of %d: unless training.schedule is constant, "
        "the learning rate %s",
        now.last_step,
        before.last_step,
        rate,
    )


def _read(folder: Location) -> list[Chapter]:
    path = RunFolder(folder).history
    known: list[Chapter] = records.read(path, list[Chapter]) if path.exists() else []
    return known
