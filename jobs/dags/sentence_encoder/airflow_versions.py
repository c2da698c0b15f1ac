"""The names that differ between Airflow 2.11 and 3; all other modules import them from here.

Most of them come from the provider `common-compat`, a dependency of all other providers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    Asset,
    AssetAlias,
    BaseNotifier,
    BaseOperator,
    ObjectStoragePath,
    Param,
    Variable,
    chain,
)
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from airflow.timetables.trigger import CronTriggerTimetable

if AIRFLOW_V_3_0_PLUS:
    from airflow.timetables.assets import AssetOrTimeSchedule
else:
    from airflow.timetables.datasets import DatasetOrTimeSchedule

__all__ = [
    "DAG",
    "AirflowException",
    "AirflowFailException",
    "AirflowSkipException",
    "Asset",
    "AssetAlias",
    "BaseNotifier",
    "BaseOperator",
    "ObjectStoragePath",
    "Param",
    "chain",
    "cron_or_assets",
    "json_variable",
]


def json_variable(name: str) -> dict[str, Any]:
    """Return an Airflow variable with a JSON object, empty by default."""
    default: dict[str, Any] = {"default" if AIRFLOW_V_3_0_PLUS else "default_var": {}}
    found: dict[str, Any] = Variable.get(name, deserialize_json=True, **default)
    return found


def cron_or_assets(cron: str, assets: Sequence[Asset]) -> Any:
    """Return a schedule: at these times (UTC), and after updates of all the assets."""
    times = CronTriggerTimetable(cron, timezone="UTC")
    if AIRFLOW_V_3_0_PLUS:
        return AssetOrTimeSchedule(timetable=times, assets=assets)
    return DatasetOrTimeSchedule(timetable=times, datasets=assets)
