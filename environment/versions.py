"""Runs a part of the tests in other environments: other releases of Python and of Spark.

    make matrix-versions                                     all of environment/versions.toml
    make matrix-versions VERSIONS="Python 3.12, Spark 4.3"   one; several have semicolons between

Each environment is requirements.lock with what a short lock of its own puts in the place of
releases, and is made by the Makefile, like the main one. With `--make` that is all. What ran is
kept in dist/versions, and becomes the table of docs/reference/versions.md.

Exit codes: 0 when all tests passed; 1 when some failed; 2 when an environment could not be made.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadlines import ended
from errors import PackageError
from packages import PIN
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "reference" / "versions.md"
RESULTS = ROOT / "dist" / "versions"
CONTRACT = (
    "tests/engines/test_contract.py"
    "::test_it_trains_checkpoints_reports_resumes_and_leaves_nothing[{case}]"
)
MAKE_SECONDS = TEST_SECONDS = 2 * 3600.0
# What the page tells of an environment, by the names of the registry.
PACKAGES = ("pyspark", "numpy", "pandas", "pyarrow", "torch", "tensorflow")
_ABSENT, _NOT_RUN = "not installed", "not run"
_ASK = """
import json, platform
from importlib import metadata
from pipelines.spark.java import java_version
from pipelines.spark.session import provide_java
provide_java()
there = {one.name.lower().replace("_", "-"): one.version for one in metadata.distributions()}
print(json.dumps(there | {"python": platform.python_version(), "java": java_version()}))
"""


@dataclass(frozen=True)
class Environment:
    """Where tests run.

    Attributes:
        name: For people.
        folder: Of the environment, in the repository.
        python: The release of its interpreter.
        lock: What differs from requirements.lock, if anything does.
        without: Packages of requirements.lock that it lacks.
    """

    name: str
    folder: str
    python: str
    lock: str | None = None
    without: tuple[str, ...] = ()

    @property
    def result(self) -> Path:
        """Where it is kept what ran."""
        return RESULTS / f"{re.sub('[^a-z0-9.]+', '-', self.name.lower())}.json"


@dataclass(frozen=True)
class Part:
    """Tests that belong together.

    Attributes:
        name: For people.
        tests: Files, folders and names of tests.
        needs: The package without which there are none.
    """

    name: str
    tests: tuple[str, ...]
    needs: str | None = None

    def has(self, test: str) -> bool:
        """Whether it has a test, which is named as pytest names it."""
        file = test.partition("::")[0]
        return any(one in {test, file} or file.startswith(f"{one}/") for one in self.tests)


def read_list(text: str) -> tuple[list[Environment], list[Part]]:
    """The environments and the parts of the list."""
    listed = tomllib.loads(text)
    environments = [
        Environment(name, **(fields | {"without": tuple(fields.get("without", ()))}))
        for name, fields in listed["environments"].items()
    ]
    parts = [
        Part(
            name,
            (
                *fields.get("tests", ()),
                *(CONTRACT.format(case=case) for case in fields.get("contract", ())),
            ),
            fields.get("needs"),
        )
        for name, fields in listed["parts"].items()
    ]
    return environments, parts


def merged(lock: str, own: str, without: Iterable[str]) -> str:
    """A lock with releases of another one in place of those of the same names.

    Args:
        lock: The whole lock.
        own: The releases that differ.
        without: Names that are left out.
    """
    dropped = {canonicalize_name(name) for name in without} | {name for name, _ in blocks(own)}
    kept = [block for name, block in blocks(lock) if name not in dropped]
    return "\n".join([*kept, *(block for _, block in blocks(own))]) + "\n"


def blocks(lock: str) -> Iterator[tuple[str, str]]:
    """The releases of a lock with their hashes, by name."""
    for block in re.split(r"(?<!\\)\n", lock):
        if match := PIN.match(block):
            yield canonicalize_name(match["name"]), block


def interpreter(release: str) -> str:
    """A Python of a release: one of `PYTHONS`, of the PATH, or of pyenv.

    Raises:
        PackageError: There is none that can make an environment.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    candidates = [
        *os.environ.get("PYTHONS", "").split(),
        shutil.which(f"python{release}"),
        *map(str, sorted(pyenv.glob(f"{release}.*/bin/python"))),
    ]
    question = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        if ended([candidate, "-c", question]).stdout.strip() == release:
            return candidate
    raise PackageError(
        f"there is no Python {release} with venv: install it, or `make matrix-versions"
        f" PYTHONS=/path/to/python{release}`"
    )


def make(environment: Environment) -> Path:
    """Makes an environment, unless nothing has changed since; gives its Python.

    Raises:
        PackageError: It cannot be made.
    """
    folder = ROOT / environment.folder
    lock = ROOT / "requirements.lock"
    if environment.lock or environment.without:
        own = (LIST.parent / environment.lock).read_text() if environment.lock else ""
        text = merged(lock.read_text(), own, environment.without)
        lock = folder.with_name(f"{folder.name}.lock")
        lock.parent.mkdir(exist_ok=True)
        lock.write_text(text)
    # Without what `make` hands to those that it starts itself, such as a number of jobs.
    variables = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    command = [
        "make",
        "--jobs=1",
        "environment",
        f"PYTHON={interpreter(environment.python)}",
        f"VENV={environment.folder}",
        f"LOCK={lock.relative_to(ROOT)}",
    ]
    done = ended(command, MAKE_SECONDS, env=variables, log=sys.stderr, cwd=ROOT)
    if done.returncode:
        raise PackageError(f"{environment.name}: `make environment` failed, see above")
    return folder / "bin" / "python"


def run_tests(environment: Environment, python: Path, parts: Sequence[Part]) -> dict[str, Any]:
    """Runs the tests of the parts that an environment has packages for.

    Returns:
        Versions, by part how many tests passed, failed and were skipped, and whether any failed.

    Raises:
        PackageError: The tests did not run.
    """
    asked = ended([python, "-c", _ASK])
    if asked.returncode:
        raise PackageError(f"{environment.name}: {asked.stderr.strip().splitlines()[-1]}")
    installed = json.loads(asked.stdout.splitlines()[-1])
    there = [part for part in parts if part.needs is None or part.needs in installed]
    report = environment.result.with_suffix(".xml")
    report.unlink(missing_ok=True)
    # Cases of the contract that other cases stand for are run only in the matrix.
    command = [str(python), "-m", "pytest", "-q", "--matrix", f"--junitxml={report}"]
    command += [test for part in there for test in part.tests]
    done = ended(command, TEST_SECONDS, log=sys.stderr, cwd=ROOT)
    if done.returncode not in {0, 1} or not report.is_file():
        raise PackageError(f"{environment.name}: pytest ended with exit code {done.returncode}")
    return {
        "packages": {name: installed[name] for name in ("python", "java", *PACKAGES)},
        "parts": {part.name: cell(counts(report.read_text(), part)) for part in there},
        "failed": done.returncode == 1,
    }


def counts(report: str, part: Part) -> dict[str, int]:
    """How many tests of a part passed, failed and were skipped.

    Args:
        report: As pytest writes it with `--junitxml`.
        part: With the tests to count.
    """
    found: Counter[str] = Counter({"passed": 0, "failed": 0, "skipped": 0})
    for case in ET.fromstring(report).iter("testcase"):
        test = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        if part.has(test):
            kinds = {child.tag for child in case}
            failed = kinds & {"failure", "error"}
            found["failed" if failed else "skipped" if "skipped" in kinds else "passed"] += 1
    return dict(found)


def page(results: Mapping[str, Mapping[str, Any]], parts: Sequence[Part]) -> str:
    """The page of what ran where, as Markdown.

    Args:
        results: By the name of the environment, what :func:`run_tests` found; empty if it did not
            run yet.
        parts: The rows.
    """

    def told(key: str, name: str) -> list[str]:
        return [
            str(found[key].get(name, _ABSENT) if found else _NOT_RUN) for found in results.values()
        ]

    versions = [(name, *told("packages", name)) for name in ("python", "java", *PACKAGES)]
    tests = [(f"**{part.name}**", *told("parts", part.name)) for part in parts]
    lines = [
        "<!-- Written by `make matrix-versions`; edit environment/versions.py instead. -->\n",
        "# Python and Spark releases\n",
        "`make test` runs all tests on Python 3.11 and Spark 3.5. `make matrix-versions` makes the"
        " environments below, and runs the same part of the tests in each."
        " [environment/versions.toml](../../environment/versions.toml) lists this part. The numbers"
        " count tests.\n",
        "| | " + " | ".join(results) + " |",
        "|---|" + "---|" * len(results),
        *("| " + " | ".join(row) + " |" for row in (*versions, *tests)),
        "",
        notes(),
    ]
    return "\n".join(lines)


def notes() -> str:
    """What stands below the table."""
    return """\
`not installed`: the engine does not support that release. BigDL's jars need Scala 2.12, so the
engine `bigdl` (dllib and Orca) runs only on Spark 3.5. On Spark 4 it refuses to start.
Megatron-Core has an environment of its own (`make megatron`), and `make mesh` installs Mesh
TensorFlow. Their tests run apart from this matrix.

## Run it

    make matrix-versions
    make matrix-versions VERSIONS="Python 3.12, Spark 4.3"     # some, with semicolons between
    make matrix-versions PYTHONS=/path/to/python3.12           # one that is not on the PATH

Each environment has the releases of [requirements.lock](../../requirements.lock), except those in
`environment/spark-4.0.lock` or `environment/spark-4.3.lock`. It needs as much disk as the main one.
`.venv-versions` holds it, together with its lock. To make one without tests, and to pack it for a
cluster:

    .venv/bin/python environment/versions.py --make "Python 3.12, Spark 4.3"
    make package ENGINE=torch VENV=.venv-versions/python3.12-spark4.3 \\
        LOCK=.venv-versions/python3.12-spark4.3.lock

## Differences

- **Spark 4** needs Java 17 or later. Its jars, and those of Delta and Iceberg, are for Scala 2.13.
  SQL follows ANSI unless `spark.sql.ansi.enabled` is false. Each release ran with its default.
- **NumPy below 2**: the extras of Elephas and BigDL ask for it. The table shows each NumPy release.
- **Python 3.12** has no `distutils`, but Spark 3.5 imports it. On Python 3.12, the package installs
  setuptools, which brings it.
"""


def cell(found: Mapping[str, int]) -> str:
    """What happened to the tests of a part, in a few words."""
    words = [f"{number} {kind}" for kind, number in found.items() if number]
    return ", ".join(words) or "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes environments and runs tests in them; gives the exit code."""
    environments, parts = read_list(LIST.read_text())
    names = [environment.name for environment in environments]
    given = parser(names).parse_args(arguments)
    asked = {name.strip() for name in given.names.split(";") if name.strip()}
    if unknown := asked - set(names):
        print(
            f"error: there is no {min(unknown)}, name some of {'; '.join(names)}", file=sys.stderr
        )
        return 2
    codes = [
        done(environment, () if given.make else parts)
        for environment in environments
        if not asked or environment.name in asked
    ]
    if not given.make:
        write_page(environments, parts)
    return max(codes)


def parser(names: Sequence[str]) -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="Runs tests on other releases.")
    made.add_argument("names", nargs="?", default="", help=f"some of {'; '.join(names)}")
    made.add_argument("--make", action="store_true", help="make environments, and run no tests")
    return made


def write_page(environments: Sequence[Environment], parts: Sequence[Part]) -> None:
    """Writes the page from the results that are kept."""
    results = {
        one.name: json.loads(one.result.read_text()) if one.result.is_file() else {}
        for one in environments
    }
    PAGE.write_text(page(results, parts))
    print(f"written: {PAGE}")


def done(environment: Environment, parts: Sequence[Part]) -> int:
    """Makes an environment, runs the tests of parts, and keeps the result; gives the exit code."""
    try:
        python = make(environment)
        if not parts:
            return 0
        RESULTS.mkdir(parents=True, exist_ok=True)
        found = run_tests(environment, python, parts)
    except (PackageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    environment.result.write_text(json.dumps(found, indent=1) + "\n")
    told = ", ".join(f"{part}: {counted}" for part, counted in found["parts"].items())
    print(f"{environment.name}: {told}")
    return int(found["failed"])


if __name__ == "__main__":
    sys.exit(main())
