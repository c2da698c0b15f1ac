"""The section `objective` of the settings: a loss, and the keys of that loss."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.settings.base import Settings, choice_of

logger = logging.getLogger(__name__)

DEFAULT = "in_batch_negatives"


class ObjectiveSettings(Settings):
    """The loss to minimise. Every loss adds its own keys, in its own module."""

    name: Annotated[str, choice_of(LOSSES)] = DEFAULT
    """The [loss](losses.md)."""
    dimensions: tuple[int, ...] = ()
    """Matryoshka widths: the loss is the sum over embeddings truncated to each and scaled to length
    1, and retrieval is evaluated at each. Name the whole width too. Empty: only that."""
    dimension_weights: tuple[float, ...] = ()
    """Weights of `dimensions` in the sum. Empty: 1 each."""

    @property
    def compares_anchors(self) -> bool:
        """Tell whether anchors are candidates of other anchors."""
        return False

    @property
    def uses_teacher(self) -> bool:
        """Tell whether the loss reads a teacher's vectors."""
        needs: str = LOSSES.load(self.name).needs
        return needs == "teacher"

    @property
    def projects_teacher(self) -> bool:
        """Tell whether a teacher's vectors are projected to the width of the embeddings."""
        return False

    def check_width(self, width: int, teacher: int | None = None) -> None:
        """Refuse dimensions above the width of embeddings, and unfit vectors of a teacher.

        Logs a line if no dimension is the whole width. `teacher` is the width of the teacher's
        vectors, if the loss reads them.
        """
        if any(dimension > width for dimension in self.dimensions):
            raise InputError(
                "objective.dimensions",
                f"{max(self.dimensions)} is more than the {width} values of an embedding",
                f"Use at most {width}",
            )
        if self.dimensions and width not in self.dimensions:
            logger.warning(
                "objective.dimensions leaves out %d, the whole width of an embedding: its last %d "
                "numbers are not trained",
                width,
                width - max(self.dimensions),
            )


def objective(name: str = DEFAULT, **keys: Any) -> ObjectiveSettings:
    """Return the settings of a loss; missing keys have its defaults."""
    settings: type[ObjectiveSettings] = LOSSES.load(name).settings
    return settings(name=name, **keys)


def settings_by_loss() -> Mapping[str, type[ObjectiveSettings]]:
    """Return the settings class of each loss, common keys included, by the loss's name."""
    return {name: LOSSES.load(name).settings for name in LOSSES}


def _of_its_loss(given: Any) -> Any:
    """Return the settings of the named loss; anything but a mapping stays as it is."""
    if type(given) is ObjectiveSettings:
        return objective(**given.model_dump())
    if not isinstance(given, Mapping) or not isinstance(given.get("name", DEFAULT), str):
        return given
    name = choice_of(LOSSES).current(given.get("name", DEFAULT))
    chosen: type[ObjectiveSettings] = LOSSES.load(name).settings
    keys = {key: value for key, value in given.items() if not _is_of_others(name, key, value)}
    return chosen.model_validate({**keys, "name": name})


def _is_of_others(name: str, key: str, value: Any) -> bool:
    """Tell whether a key is of other losses only, with their default; refuse other values.

    Files of earlier releases hold the keys of all losses.
    """
    fields = ((loss, settings.model_fields) for loss, settings in settings_by_loss().items())
    owners = {loss: by_name[key] for loss, by_name in fields if key in by_name}
    if name in owners or not owners:
        return False
    # A file has lists where defaults are tuples.
    given = tuple(value) if isinstance(value, list) else value
    if given not in [field.get_default(call_default_factory=True) for field in owners.values()]:
        raise InputError(
            f"objective.{key}",
            f"loss {name} has no such setting",
            f"Leave it out: it belongs to {', '.join(owners)}",
        )
    logger.warning("objective.%s is left out: loss %s has no such setting", key, name)
    return True


def own_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a section without those of other losses.

    The files of runs have them: earlier releases wrote the keys of all losses.
    """
    name = LOSSES.renamed.get(str(given.get("name", DEFAULT)), given.get("name", DEFAULT))
    of_any = {key for settings in settings_by_loss().values() for key in settings.model_fields}
    of_this = settings_by_loss()[name].model_fields if name in LOSSES else of_any
    return {key: value for key, value in given.items() if key in of_this or key not in of_any}


AnyObjective = Annotated[SerializeAsAny[ObjectiveSettings], BeforeValidator(_of_its_loss)]
"""The settings of the loss that they name."""
