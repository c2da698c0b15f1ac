"""The command `report`: its page, the runs, and the place of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipelines.errors import InputError
from pipelines.files.locations import Location, location
from pipelines.files.ownership import MEASURED, is_ours
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.progress import activity
from pipelines.report.page_parts import drawn
from pipelines.report.run_page import write_report
from pipelines.report.runs_page import KEY, check_run, check_runs, write_comparison
from pipelines.runs.job_records import prepared_folder_of
from pipelines.settings import Config
from pipelines.settings.base import NotLocalError, stored_path
from pipelines.settings.load import parse, read_tree
from pipelines.settings.spark import StorageSettings

OUTPUT_KEY = "--output"
_BEGINNING = 4096
COMPARISON = "comparison.html"
"""The page of several runs, in the working folder."""


def write_page(config: Config, runs: Sequence[str], output: str | None) -> Location:
    """Write the report of a run, or the page that compares several; return its path.

    Without ``runs``, the settings name the run. ``output`` replaces the usual path.

    Raises:
        InputError: There is no such run, one is named twice, or the page's place is taken.
    """
    target = None if output is None else _target(output, config.storage)
    folders = [_named(KEY, run, config.storage) for run in runs]
    if len(folders) > 1:
        check_runs(folders)
        page = target or _target(COMPARISON, config.storage)
        return _drawn(lambda: write_comparison(folders, page))
    if folders:
        check_run(folders[0])
        _check_own(KEY, folders[0], target)
        prepared = _prepared(folders[0], config.storage)
        return _drawn(lambda: write_report(folders[0], prepared, target))
    folder = RunFolder.of(config).path
    if not folder.is_dir():
        raise InputError("run.folder", f"there is no {folder}", "Run `train` first")
    _check_own("run.folder", folder, target)
    return _drawn(lambda: write_report(folder, PreparedFolder.of(config).path, target))


def _drawn(draw: Callable[[], Location]) -> Location:
    # Only now, after all checks: a refusal is a single line.
    with activity("drawing the report"):
        return drawn(draw)


def _target(output: str, stores: StorageSettings) -> Location:
    target = _named(OUTPUT_KEY, output, stores)
    if target.is_dir():
        raise InputError(OUTPUT_KEY, f"{target} is a folder", "Name a file in it")
    _check_page(OUTPUT_KEY, target)
    return target


def _check_own(key: str, folder: Location, target: Location | None) -> None:
    """Refuse to replace a user's file at the usual place of a folder's page."""
    if target is None and not is_ours(folder, MEASURED):
        _check_page(key, RunFolder(folder).report)


def _check_page(key: str, file: Location) -> None:
    if file.is_file() and not _is_page(file):
        problem = f"the page would replace {file}, which `report` did not write"
        raise InputError(key, problem, "Name another file")


def _is_page(file: Location) -> bool:
    """Tell whether a file is empty or ours; a style sheet marks pages of earlier releases."""
    with file.open("rb") as opened:
        beginning = bytes(opened.read(_BEGINNING))
    return (
        not beginning
        or b"sentence-pipelines" in beginning
        or b"pipelines/report/svg_charts.py" in beginning
    )


def _prepared(run: Location, stores: StorageSettings) -> Location:
    """Return the preparation of a run; of an old run, the one in its settings."""
    known = prepared_folder_of(run, stores)
    if known is not None:
        return known
    settings = read_tree(RunFolder(run).config, recorded=True)
    return PreparedFolder.of(
        parse({"prepared": settings.get("prepared", {}), "storage": stores})
    ).path


def _named(key: str, given: str, stores: StorageSettings) -> Location:
    """Return the absolute location of an argument."""
    try:
        return location(stored_path(given), stores).absolute()
    except NotLocalError as error:
        raise InputError(key, error.problem, error.remedy) from None
