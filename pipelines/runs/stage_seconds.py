"""What the last run took of a stage whose size is not known, for the display of the next one."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pipelines.errors import DamagedFileError
from pipelines.files import records, storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.settings import Config

logger = logging.getLogger(__name__)

# Preparing is mostly kept, and steps are counted.
STAGES = ("evaluating",)
# Where files are and who is told decide no time, and what is in the others may be secret.
_OTHERS = {"prepared", "run", "tracking", "promotion", "embedding", "spark"}


@dataclass(frozen=True)
class _Known:
    """All of ``run_seconds.json``.

    Attributes:
        of: Digest of the settings.
        seconds: By stage.
    """

    of: str
    seconds: dict[str, float]


def expected_seconds(config: Config) -> dict[str, float]:
    """Seconds by stage, of the last run on this preparation if it had the same settings."""
    file = PreparedFolder.of(config).run_seconds
    if not file.is_file():
        return {}
    try:
        known: _Known = records.read(file, _Known)
    except DamagedFileError as error:
        # It is written anew at the end, and decides nothing but a display.
        logger.debug("%s", error)
        return {}
    return known.seconds if known.of == _digest(config) else {}


def keep_seconds(config: Config, seconds: Mapping[str, float]) -> None:
    """Notes what a run took that has ended."""
    found = {stage: seconds[stage] for stage in STAGES if stage in seconds}
    storage.write_json(
        PreparedFolder.of(config).run_seconds, asdict(_Known(_digest(config), found))
    )


def _digest(config: Config) -> str:
    settings = config.model_dump(mode="json", exclude=_OTHERS)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
