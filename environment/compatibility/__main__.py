"""The command line of `make compatibility`.

Exit codes: 0 when every cell is equal or refuses; 1 when one differs; 2 when an environment could
not be made, or the command line names nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from errors import PackageError

from compatibility.cells import (
    LIST,
    Listed,
    Reader,
    Results,
    cell_key,
    check_distinct,
    judged,
    probe_models,
    read_list,
    select,
)
from compatibility.environments import python_of, versions
from compatibility.models import MODELS, write_models
from compatibility.page import page
from pipelines.errors import PipelineError

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "build" / "compatibility"
PAGE = ROOT / "docs" / "reference" / "compatibility.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are asked for, and write the page; return the exit code."""
    asked = parser().parse_args(arguments)
    listed, results = read_list(LIST.read_text()), Results.read(HOME / "results.json")
    try:
        if not asked.page:
            readers = select([*listed.readers], asked.reader, "reader")
            models = select([*MODELS], asked.model, "model")
            fill(listed, results, readers, write_models(HOME / "models", models))
    except (PackageError, PipelineError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    PAGE.write_text(page(listed, results))
    differing = [name for name, cell in results.cells.items() if cell["verdict"] == "differs"]
    for name in differing:
        print(f"differs: {name}", file=sys.stderr)
    return int(bool(differing))


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="compatibility", description="Fills the table of readers.")
    made.add_argument("--reader", action="append", default=[], help="some: a part of the name")
    made.add_argument("--model", action="append", default=[], help="some: a part of the name")
    made.add_argument("--page", action="store_true", help="only write the page")
    return made


def fill(
    listed: Listed, results: Results, readers: Sequence[str], folders: dict[str, Path]
) -> None:
    """Run the cells of some readers and models that are not kept.

    Raises:
        PackageError: An environment cannot be made, or the reference does not serve as one.
    """
    expected = {}
    for model, result in probe_models(listed, listed.reference, folders, HOME):
        check_distinct(model, result)
        expected[model] = result
    for name in readers:
        reader = listed.readers[name]
        keys = {model: cell_key(listed, reader, folder) for model, folder in folders.items()}
        left = {
            model: folder
            for model, folder in folders.items()
            if results.get(name, model, keys[model]) is None
        }
        if not left:
            continue
        releases = shown_versions(listed, reader)
        for model, result in probe_models(listed, reader, left, HOME):
            cell = {**judged(expected[model], result), "key": keys[model], "versions": releases}
            results.put(name, model, cell)
            said = {key: value for key, value in cell.items() if key not in ("key", "versions")}
            print(f"{name} / {model}: {said}", flush=True)


def shown_versions(listed: Listed, reader: Reader) -> dict[str, str]:
    """Return the releases of a reader that the page names."""
    python = python_of(reader.environment, listed.environments, HOME / "environments")
    found = versions(python)
    return {name: found[name].partition("+")[0] for name in reader.shows if name in found}


if __name__ == "__main__":
    sys.exit(main())
