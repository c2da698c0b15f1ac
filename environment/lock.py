"""Writes the hashes into the locks: of every file that the registry has of each release.

A lock names one exact version a line. Behind it stand the sha256 of all files of that release, for
every platform, so that `pip install --require-hashes` takes what was there when the lock was
written, and nothing else. After a version was changed:

    python environment/lock.py            writes the hashes of all locks anew
    python environment/lock.py --check    compares them with the registry, and changes nothing

The registry is the one that pip is configured with. Exit codes: 0 when done, or nothing is wrong; 2
when not, and a line on standard error for each release says why.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from errors import PackageError
from packages import PIN
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

HERE = Path(__file__).resolve().parent
LOCKS = (HERE.parent / "requirements.lock", *sorted(HERE.glob("*.lock")))
# PEP 691: the simple API as JSON.
ACCEPTED = "application/vnd.pypi.simple.v1+json"
SECONDS = 60.0
AT_ONCE = 8
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """One release of a lock.

    Attributes:
        name: Of the package, as the lock spells it.
        version: That is locked.
        hashes: That the lock has, sorted.
    """

    name: str
    version: str
    hashes: tuple[str, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks all locks; gives the exit code."""
    parser = argparse.ArgumentParser(description="Writes the hashes into the locks.")
    parser.add_argument("--check", action="store_true", help="compare them, and change nothing")
    is_check = parser.parse_args(arguments).check
    texts = {lock: lock.read_text() for lock in LOCKS}
    try:
        found = registered({pin for text in texts.values() for pin in pins(text)})
    except (PackageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    faults = [fault for pin, hashes in found.items() if (fault := fault_of(pin, hashes, is_check))]
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    if faults:
        return 2
    if not is_check:
        for lock, text in texts.items():
            lock.write_text(written(text, found))
    return 0


def pins(text: str) -> Iterator[Pin]:
    """The releases of a lock."""
    for block in re.split(r"(?<!\\)\n", text):
        match = PIN.match(block)
        if match:
            yield Pin(match["name"], match["version"], tuple(sorted(_HASH.findall(block))))


def registered(wanted: set[Pin]) -> dict[Pin, tuple[str, ...]]:
    """The hashes that the registry has of releases.

    Raises:
        OSError: It cannot be asked.
        PackageError: It does not answer in JSON, or pip does not say where it is.
    """
    index = index_address()
    ordered = sorted(wanted, key=lambda pin: pin.name)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        pages = pool.map(lambda pin: page(index, pin.name), ordered)
        return {pin: release_hashes(found, pin) for pin, found in zip(ordered, pages, strict=True)}


def index_address() -> str:
    """The registry that pip is configured with, or else its own default.

    Raises:
        PackageError: pip does not say.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    try:
        listed = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=SECONDS
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or f"exit code {error.returncode}").splitlines()[-1]
        raise PackageError(f"`pip config list` fails: {last}") from None
    except subprocess.TimeoutExpired:
        raise PackageError(f"`pip config list` did not end within {SECONDS:.0f} s") from None
    own = re.findall(r"^[\w:]+\.index-url='([^']+)'$", listed.stdout, re.MULTILINE)
    if own:
        return str(own[-1]).rstrip("/")
    from pip._internal.models.index import PyPI

    return str(PyPI.simple_url).rstrip("/")


def page(index: str, name: str) -> Mapping[str, object]:
    """What the registry says of a package.

    Raises:
        OSError: It cannot be asked, or knows no such package.
        PackageError: It does not answer in JSON.
    """
    address = f"{index}/{canonicalize_name(name)}/"
    request = urllib.request.Request(address, headers={"Accept": ACCEPTED})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        try:
            found = json.load(answer)
        except ValueError:
            found = None
    if not isinstance(found, dict):
        # Its host alone: an address may hold a password.
        host = urllib.parse.urlsplit(index).hostname
        raise PackageError(f"the registry at {host} has no JSON of {name}, take another registry")
    return found


def release_hashes(page: Mapping[str, object], pin: Pin) -> tuple[str, ...]:
    """The sha256 of all files of a release, sorted."""
    files = page.get("files")
    found = {
        file["hashes"]["sha256"]
        for file in (files if isinstance(files, list) else ())
        if file_version(file["filename"]) == Version(pin.version) and file["hashes"].get("sha256")
    }
    return tuple(sorted(found))


def file_version(name: str) -> Version | None:
    """The version that a file is of; None of installers and eggs, which pip does not take."""
    try:
        if name.endswith(".whl"):
            return parse_wheel_filename(name)[1]
        return parse_sdist_filename(name)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def fault_of(pin: Pin, hashes: tuple[str, ...], is_check: bool) -> str | None:
    """What is wrong with a release, if something is.

    Files may be added to a release, so a lock need not have the hashes of all of them.
    """
    release = f"{pin.name}=={pin.version}"
    if not hashes:
        return f"{release}: the registry has no file of it, name another version"
    if is_check and not pin.hashes:
        return f"{release}: there are no hashes, run `python environment/lock.py`"
    unknown = set(pin.hashes) - set(hashes)
    if is_check and unknown:
        return f"{release}: the registry has no file of sha256 {min(unknown)}, find out why"
    return None


def written(text: str, found: Mapping[Pin, tuple[str, ...]]) -> str:
    """A lock with other hashes; all comments stay."""
    kept = [line for line in text.splitlines() if "--hash=" not in line]
    known = {(pin.name, pin.version): hashes for pin, hashes in found.items()}
    lines: list[str] = []
    for line in kept:
        match = PIN.match(line)
        lines.append(line.removesuffix("\\").rstrip())
        if match:
            hashes = known[match["name"], match["version"]]
            lines[-1:] = [f"{lines[-1]} \\"] + [f"    --hash=sha256:{one} \\" for one in hashes]
            lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
