"""What the last run took of a stage whose size is not known, for the display of the next one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pipelines.files import storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.settings import Config

# Preparing is mostly kept, and steps are counted.
STAGES = ("evaluating",)
# Where files are and who is told decide no time, and what is in the others may be secret.
_OTHERS = {"prepared", "run", "tracking", "promotion", "embedding", "spark"}


def expected_seconds(config: Config) -> dict[str, float]:
    """Seconds by stage, of the last run on this preparation if it had the same settings."""
    file = PreparedFolder.of(config).run_seconds
    known = storage.read_json(file) if file.is_file() else {}
    seconds: dict[str, float] = known["seconds"] if known.get("of") == _digest(config) else {}
    return seconds


def keep_seconds(config: Config, seconds: Mapping[str, float]) -> None:
    """Notes what a run took that has ended."""
    found = {stage: seconds[stage] for stage in STAGES if stage in seconds}
    storage.write_json(
        PreparedFolder.of(config).run_seconds, {"of": _digest(config), "seconds": found}
    )


def _digest(config: Config) -> str:
    settings = config.model_dump(mode="json", exclude=_OTHERS)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
