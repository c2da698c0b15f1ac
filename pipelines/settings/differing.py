"""Settings that differ from their defaults."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pipelines.settings import Config, ObjectiveSettings, Settings


def differing_settings(config: Config, sections: Collection[str] | None = None) -> dict[str, Any]:
    """What is set to something else than its default, by dotted key, as in JSON.

    The keys of a loss have the defaults of that loss.

    Args:
        config: The settings.
        sections: Those that are looked at; all unless given.
    """
    found: dict[str, Any] = {}
    for name, section in config:
        if (sections is None or name in sections) and isinstance(section, Settings):
            default = type(section)()
            found |= _differing(f"{name}.", section.model_dump(mode="json"), default)
    chosen, usual = config.objective.name, ObjectiveSettings().name
    if "objective" in (sections or Config.model_fields) and chosen != usual:
        found["objective.name"] = chosen
    return found


def _differing(
    prefix: str, values: Mapping[str, Any], default: Settings
) -> Iterator[tuple[str, Any]]:
    """Keys and values of a section, or of a part of one, that are not as by default."""
    usual = default.model_dump(mode="json")
    for key, value in values.items():
        part = getattr(default, key, None)
        # A mapping of the user's own names is one value.
        if isinstance(part, Settings):
            yield from _differing(f"{prefix}{key}.", value, part)
        elif key not in usual or value != usual[key]:
            yield f"{prefix}{key}", value
