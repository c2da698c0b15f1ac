"""`compare`: measures every engine in turn on the user's data, and recommends one."""

from __future__ import annotations

import json
from typing import Any

from pipelines import progress
from pipelines.libraries import COMPARISON, DRIVER, check_installed
from pipelines.settings import Config


def command(config: Config, data: str | None, **options: Any) -> None:
    """Compare strategies on `data`, and print the figures as a JSON object.

    `options` are those of :func:`pipelines.compare.command.measure`.
    """
    for library in COMPARISON:
        check_installed("compare", library, where=DRIVER)
    # Its libraries may be missing.
    from pipelines.compare.command import measure

    with progress.job("compare", ("compare",)), progress.activity("compare"):
        progress.say(json.dumps(measure(config, data, **options)))
