"""Environments for readers, each made once.

An environment may stand on another one: it sees that one's packages, and pip installs only what is
missing or of another release. So PyTorch and `transformers` lie on the disk once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deadlines import ended
from errors import PackageError

INSTALLER = Path(__file__).resolve().parents[1] / "install.py"
INSTALL_SECONDS = 3600.0
OWN = "project"
"""The name of the environment that runs this."""
_STAMP = "made.json"
_VERSIONS = (
    "import json; from importlib import metadata;"
    "print(json.dumps({one.name.lower().replace('_', '-'): one.version"
    " for one in reversed([*metadata.distributions()])}))"
)


@dataclass(frozen=True)
class Environment:
    """The packages of some readers.

    Attributes:
        name: Also its folder's.
        requires: Requirements of pip.
        on: The environment whose packages it sees.
        remove: Packages to remove afterwards: those that others require and that do not load here.
    """

    name: str
    requires: tuple[str, ...] = ()
    on: str | None = None
    remove: tuple[str, ...] = ()


def chain(name: str, known: Mapping[str, Environment]) -> list[Environment]:
    """Return an environment and those below it, the lowest first.

    Raises:
        PackageError: One of them is not listed.
    """
    if name not in known:
        raise PackageError(f"there is no environment {name}: name some of {', '.join(known)}")
    environment = known[name]
    below = chain(environment.on, known) if environment.on else []
    return [*below, environment]


def digest(name: str, known: Mapping[str, Environment]) -> str:
    """Return a digest of all that an environment is made from."""
    if name == OWN:
        root = Path(__file__).resolve().parents[2]
        files = [root / "requirements.lock", *sorted((root / "pipelines").rglob("*.py"))]
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    listed = [(one.requires, one.remove) for one in chain(name, known)]
    text = json.dumps([listed, sys.version_info[:2]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def python_of(name: str, known: Mapping[str, Environment], home: Path) -> Path:
    """Return the Python of an environment below ``home``; make it unless it is there.

    Raises:
        PackageError: It cannot be made.
    """
    if name == OWN:
        return Path(sys.executable)
    below = None
    for environment in chain(name, known):
        below = _made(environment, digest(environment.name, known), home, below)
    assert below is not None
    return below


def _made(environment: Environment, key: str, home: Path, below: Path | None) -> Path:
    folder = home / environment.name
    stamp, python = folder / _STAMP, folder / "bin" / "python"
    # It names the folders of environments, so a moved checkout makes them again.
    made = {"key": key, "place": str(folder)}
    if stamp.is_file() and json.loads(stamp.read_text()) == made:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=True)
    if below is not None:
        line = f"import site; site.addsitedir({str(_packages(below))!r})\n"
        (_packages(python) / "below.pth").write_text(line)
    if environment.requires:
        command = [sys.executable, str(INSTALLER), str(folder), *environment.requires]
        done = ended(command, INSTALL_SECONDS)
        if done.returncode:
            raise PackageError(f"{environment.name} cannot be installed:\n{done.stderr.strip()}")
    if environment.remove:
        ended([python, "-m", "pip", "uninstall", "--yes", *environment.remove])
    stamp.write_text(json.dumps(made))
    return python


def _packages(python: Path) -> Path:
    release = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python.parents[1] / "lib" / release / "site-packages"


def versions(python: Path) -> dict[str, str]:
    """Return the releases that an environment sees, by name.

    Raises:
        PackageError: It does not run.
    """
    asked = ended([python, "-c", _VERSIONS])
    if asked.returncode:
        raise PackageError(f"{python} does not run: {asked.stderr.strip()}")
    found: dict[str, str] = json.loads(asked.stdout)
    return found
