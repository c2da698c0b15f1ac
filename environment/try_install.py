"""Tries what a pip install of some extras can do: the README's example for own pairs.

An environment of its own for each set of extras has what these promise and nothing else. In the
one with Spark and without an engine, the example must be refused before anything is written, by
the command that installs what it lacks. So it must in the one without extras, which is small, finds
the model in service and reads it. In all others it must come to its model.

    make test-install                                  pip, or uv, resolves and downloads
    python environment/try_install.py torch --linked   the same packages of this environment, linked

Exit codes: 0 when all did; 1 when one did not; 2 when an environment could not be made.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import packages
from deadlines import ended
from errors import PackageError

ROOT = Path(__file__).resolve().parents[1]
INSTALLER = ROOT / "environment" / "install.py"
INSTALLS: Mapping[str, tuple[str, ...]] = {
    "lean": (),
    "spark": ("spark",),
    "torch": ("spark", "torch", "default-encoder"),
    "tensorflowonspark": ("spark", "tensorflowonspark", "default-encoder"),
}
"""The extras of each environment, by its name; that of an engine has the engine's."""
ENGINES: Mapping[str, tuple[str, ...]] = {
    "lean": (),
    "spark": (),
    "torch": (),
    "tensorflowonspark": (
        *("--set", "training.engine=tensorflowonspark"),
        *("--set", "training.framework=tensorflow"),
    ),
}
"""What each adds to the example, which trains with `torch`."""
REFUSED = ("lean", "spark")
"""Environments without what the example needs."""
INSTALL_SECONDS = 3600.0
RUN_SECONDS = 900.0
PAIRS = 200
LEAN_MEGABYTES = 300
"""The most that an install without extras takes, pip and setuptools left aside."""
_OF_VENV = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
_SERVER = """
from pathlib import Path

import pipelines
from pipelines.models.folder import read_model, write_encoder
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import random_weights
from pipelines.promotion import current, model_digest
from pipelines.tokens.vocabulary import learn_wordpieces, save_wordpieces, vocabulary_size

tokenizer, version = Path("tokenizer"), Path("served/versions/00001")
tokenizer.mkdir()
save_wordpieces(tokenizer, learn_wordpieces({"word": 3}, 60), 64, lowercase=True)
spec = StaticSpec(vocabulary=vocabulary_size(tokenizer), hidden=8)
version.parent.mkdir(parents=True)
write_encoder(version, spec, random_weights(spec, 5), tokenizer, "a card")
Path("served/current").symlink_to("versions/00001")
found = current("served")
read, weights, _ = read_model(found)
assert read.hidden == 8 and len(model_digest(found)) == 64
pipelines.load("questions.yaml")
"""
"""What a server does without Spark: it finds the model in service and reads it."""
_EXAMPLE = re.compile(r"```yaml\n(?P<yaml># questions\.yaml\n.*?)```", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the environments that are asked for; gives the exit code."""
    asked = parser().parse_args(arguments)
    failed = False
    try:
        for name in asked.names or INSTALLS:
            with tempfile.TemporaryDirectory(prefix="try-install-") as folder:
                began = time.monotonic()
                python = make(name, Path(folder) / "environment", linked=asked.linked)
                problem = tried(name, python, Path(folder) / "work")
                failed |= problem is not None
                seconds = time.monotonic() - began
                print(f"{name}: {problem or 'as promised'} ({seconds:.0f} s)", flush=True)
    except (PackageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(failed)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="Tries a fresh install of each set of extras.")
    made.add_argument(
        "names", nargs="*", choices=[[], *INSTALLS], metavar="NAME", help=", ".join(INSTALLS)
    )
    made.add_argument(
        "--linked", action="store_true", help="link the packages of this environment, download none"
    )
    return made


def make(name: str, folder: Path, *, linked: bool) -> Path:
    """Makes an environment; gives its Python.

    Args:
        name: Of :data:`INSTALLS`.
        folder: Where; it is not there yet.
        linked: Whether its packages are those of this environment.

    Raises:
        PackageError: It cannot be made.
    """
    extras = [*INSTALLS[name]]
    if extras and not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        extras.append("java")
    venv.create(folder, symlinks=True, with_pip=not linked)
    python = folder / "bin" / "python"
    if linked:
        link_packages(folder, extras)
        return python
    # Resolved as a user's pip would: no lock, no constraints.
    project = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    done = ended([sys.executable, INSTALLER, folder, project], INSTALL_SECONDS)
    if done.returncode:
        raise PackageError(f"{project} cannot be installed: {last_line(done.stderr)}")
    return python


def link_packages(folder: Path, extras: Sequence[str]) -> None:
    """Links what this project declares for some extras into an environment, and the project.

    Raises:
        PackageError: A package is not installed here.
    """
    site = next(folder.glob("lib/python*/site-packages"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = packages.locked_versions(ROOT / "requirements.lock")
    for distribution in packages.closure(packages.required(declared(project), extras), locked):
        for file in distribution.files or ():
            name, source = file.as_posix(), Path(str(distribution.locate_file(file)))
            # Outside are scripts; what `.pth` files name is no part of a package.
            if name.startswith("../") or name.endswith(".pth") or not source.is_file():
                continue
            target = site / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(source)
    (site / "pipelines").symlink_to(ROOT / "pipelines")


def declared(project: Mapping[str, Any]) -> list[str]:
    """The requirements of a project as its metadata has them, those of extras with their marker."""
    found = [*project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        for text in requirements:
            requirement, _, marker = text.partition(";")
            further = f" and ({marker.strip()})" if marker else ""
            found.append(f"{requirement.strip()}; extra == '{extra}'{further}")
    return found


def tried(name: str, python: Path, folder: Path, *further: str) -> str | None:
    """Runs the README's example in an environment; gives what was not as promised.

    Args:
        name: Of the environment.
        python: Its Python.
        folder: To work in; it is not there yet.
        further: More settings, as `training.max_steps=2`.
    """
    folder.mkdir()
    write_pairs(folder / "questions.csv")
    (folder / "questions.yaml").write_text(example((ROOT / "README.md").read_text()))
    if name == "lean" and (problem := lean_problem(python, folder)):
        return problem
    more = [part for setting in further for part in ("--set", setting)]
    done = command(python, folder, "run", "--config", "questions.yaml", *ENGINES[name], *more)
    said = f"{done.stdout}\n{done.stderr}"
    if "Traceback" in said:
        return f"a traceback: {last_line(done.stderr)}"
    if name in REFUSED:
        return refusal_problem(done, folder)
    if done.returncode:
        return f"exit code {done.returncode}: {last_line(done.stderr)}"
    if not (folder / "run" / "model" / "modules.json").is_file():
        return "no model"
    return None


def lean_problem(python: Path, folder: Path) -> str | None:
    """What a server misses in an install without extras, if anything, or its size if too large."""
    site = next(python.parents[1].glob("lib/python*/site-packages"))
    sizes = {
        path.name: sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        if path.is_dir()
        else path.stat().st_size
        for path in site.iterdir()
        if not path.name.startswith(_OF_VENV)
    }
    megabytes = sum(sizes.values()) / 1e6
    if megabytes > LEAN_MEGABYTES:
        return f"{megabytes:.0f} MB of {max(sizes, key=lambda name: sizes[name])} and others"
    if command(python, folder, "--help").returncode:
        return "no help"
    server = folder / "server"
    server.mkdir()
    shutil.copy(folder / "questions.yaml", server)
    done = ended([python, "-c", _SERVER], RUN_SECONDS, env=variables(), cwd=server)
    shutil.rmtree(server)
    return f"a server fails: {last_line(done.stderr)}" if done.returncode else None


def refusal_problem(done: CompletedProcess[str], folder: Path) -> str | None:
    """What is wrong with a refusal: it comes first, in one line, with the command that helps."""
    if done.returncode != 2 or 'pip install "sentence-pipelines[' not in done.stderr:
        return f"exit code {done.returncode}: {last_line(done.stderr)}"
    if left := sorted(path.name for path in folder.iterdir() if path.is_dir()):
        return f"refused after {', '.join(left)} was begun"
    return None


def command(python: Path, folder: Path, *arguments: str) -> CompletedProcess[str]:
    """Runs a command of this package in a folder, with nothing of this process' own paths."""
    call = "import sys; from pipelines.cli import main; sys.exit(main())"
    return ended([python, "-c", call, *arguments], RUN_SECONDS, env=variables(), cwd=folder)


def variables() -> dict[str, str]:
    """The environment variables of this process without its own paths."""
    own = {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "VIRTUAL_ENV"}
    return {key: value for key, value in os.environ.items() if key not in own}


def example(readme: str) -> str:
    """The settings of the README's example for own pairs.

    Raises:
        PackageError: It has none.
    """
    found = _EXAMPLE.search(readme)
    if found is None:
        raise PackageError("README.md has no example for own pairs")
    return found["yaml"]


def write_pairs(path: Path) -> None:
    """Writes questions and answers of words that a tokenizer knows, all different."""
    chosen = random.Random(17)
    nouns = "river bridge garden engine teacher window market forest letter winter"
    verbs = "repair measure cross paint sell open carry find describe build"
    rows = ["question,answer"]
    for number in range(PAIRS):
        noun, other = chosen.sample(nouns.split(), 2)
        verb = chosen.choice(verbs.split())
        rows.append(
            f"How do I {verb} the {noun} beside {other} number {number}?,"
            f"To {verb} a {noun} go to the {other} of number {number} and ask for help there."
        )
    path.write_text("\n".join(rows) + "\n")


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "nothing was said")


if __name__ == "__main__":
    sys.exit(main())
