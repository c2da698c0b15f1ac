"""Builds Horovod for the environment that runs this script, keeps the wheel, and installs it.

Horovod is published as source alone, and its last release does not compile against the present
frameworks: ``horovod-0.28.1.patch`` says what is changed and why. The wheel is kept outside of
the repository, in a folder named after all that it depends on, and so is compiled once for all
environments of a kind.

``make environment`` runs it. Alone it is run with the Python of any environment that holds the
rest of ``requirements.lock``:

    python environment/build_horovod.py

Exit codes: 0 when Horovod is installed; 3 when it cannot be, and one line on standard error says
why and what to do.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TextIO

from deadlines import MOMENT, ended
from errors import PackageError

VERSION = "0.28.1"
PATCH = Path(__file__).with_name(f"horovod-{VERSION}.patch")
LOCK = Path(__file__).with_name("horovod.lock")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
UNAVAILABLE = 3
MOST_COMPILERS = 8  # at a time, of up to 1.5 GB each
COMPILE_SECONDS = 2 * 3600.0  # ten minutes on two cores, and more where others are at work
PIP_SECONDS = 900.0

OPTIONS = {
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_PYTORCH": "1",
}
# These variables reach Horovod's build; one that the user sets gives another wheel.
BUILD_VARIABLE = re.compile("HOROVOD_(WITH|GPU_|CUDA_|NCCL_|NVTX_|ROCM_|CPU_|BUILD_)")


class BuildError(Exception):
    """Horovod cannot be built here; the message says why, and what to do."""


@dataclass(frozen=True)
class Target:
    """What a wheel is built for.

    Attributes:
        facts: All that the wheel depends on, by name.
        options: Environment variables of Horovod's own build.
        folder: Where the wheel is kept; the name follows from the facts.
    """

    facts: dict[str, str]
    options: dict[str, str]
    folder: Path

    def wheel(self) -> Path | None:
        """The wheel, if it has been built."""
        return next(self.folder.glob("horovod-*.whl"), None)


def this_target() -> Target:
    """The target of this environment and machine.

    The compiler is not a part of it, so that a machine without one can use the wheel of another.
    What a wheel needs to run comes with the C library, and whether it loads is tried when it is
    installed.

    Raises:
        BuildError: A framework is not installed.
    """
    options = OPTIONS | {"HOROVOD_BUILD_ARCH_FLAGS": instruction_sets()}
    options |= {name: text for name, text in os.environ.items() if BUILD_VARIABLE.match(name)}
    try:
        frameworks = {name: metadata.version(name) for name in ("torch", "tensorflow")}
    except metadata.PackageNotFoundError as error:
        raise BuildError(f"{error}. Install requirements.lock first") from error
    facts = {
        "horovod": VERSION,
        "patch": hashlib.sha256(PATCH.read_bytes()).hexdigest(),
        "python": str(sysconfig.get_config_var("SOABI")),
        "libc": "-".join(platform.libc_ver()),
        **frameworks,
        **options,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"horovod-{VERSION}-{digest[:16]}"
    return Target(facts, options, cache / "sentence-pipelines" / "wheels" / name)


def instruction_sets() -> str:
    """The instruction sets of this CPU that Horovod uses, as options of the compiler.

    Horovod's own build would look for the same three. Named here they are a part of the key, so
    that machines of different kinds can share the cache.
    """
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    known = flags.group(1).split() if flags else []
    return " ".join(f"-m{name}" for name in ("avx", "f16c", "fma") if name in known)


def compiler() -> str:
    """The C++ compiler, with its version.

    Raises:
        BuildError: There is none, or another tool of the build is missing.
    """
    cxx = shlex.split(os.environ.get("CXX") or "c++")[0]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    tools = {
        f"the C++ compiler {cxx}": shutil.which(cxx),
        "make": shutil.which("make"),
        "git": shutil.which("git"),
        "the header files of Python": headers.exists(),
    }
    missing = [name for name, found in tools.items() if not found]
    if missing:
        raise BuildError(
            f"its build misses {', '.join(missing)}. Install that (on Debian g++, make, git, "
            "python3.11-dev) and run `make environment` again"
        )
    version = run([cxx, "--version"], MOMENT)
    return f"{shutil.which(cxx)}: {version.stdout.partition(chr(10))[0]}"


def build(target: Target) -> None:
    """Builds the wheel and puts it into its folder.

    Two builds of one target do not meet: each has a temporary folder, and a whole wheel is
    renamed into place.

    Raises:
        BuildError: Naming the log.
    """
    own = f"{platform.node()}-{os.getpid()}"
    log_file = target.folder / f"build-{own}.log"
    try:
        target.folder.mkdir(parents=True, exist_ok=True)
        log = log_file.open("w", encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{error}. Set XDG_CACHE_HOME to a folder that can be written") from error
    print(f"horovod: compiling it, some ten minutes on two cores; log: {log_file}", flush=True)
    with log, tempfile.TemporaryDirectory(prefix="horovod-") as work:
        wheel = compiled_wheel(Path(work), target, log)
        aside = target.folder / f"wheel-{own}.part"
        shutil.copyfile(wheel, aside)
        (target.folder / "built-for.json").write_text(json.dumps(target.facts, indent=2) + "\n")
        aside.replace(target.folder / wheel.name)
    log_file.unlink()


def compiled_wheel(work: Path, target: Target, log: TextIO) -> Path:
    """Downloads, patches and compiles the source in a temporary folder.

    Raises:
        BuildError: Naming the step, and the log.
    """
    source = work / f"horovod-{VERSION}"
    cmake = work / "cmake"
    wheels = work / "wheels"
    pip_build = ("--no-deps", "--no-build-isolation")
    local = ("--no-index", "--find-links", work)
    steps: dict[str, tuple[str | Path, ...]] = {
        "downloading its source": fetch_command(work),
        "unpacking it": (sys.executable, "-m", "tarfile", "-e", f"{source}.tar.gz", work),
        "patching it": ("git", "-C", source, "apply", PATCH),
        "installing cmake": (*PIP, "install", "--no-deps", *local, "--target", cmake, "cmake"),
        "compiling it": (*PIP, "wheel", *pip_build, "--verbose", "--wheel-dir", wheels, source),
    }
    environment = build_environment(target, work)
    for step, command in steps.items():
        seconds = COMPILE_SECONDS if step == "compiling it" else PIP_SECONDS
        try:
            done = ended(command, seconds, env=environment, log=log)
        except PackageError:
            raise BuildError(f"{step} has not ended after {seconds:g} s, see {log.name}") from None
        if done.returncode:
            raise BuildError(f"{step} failed, see {log.name}")
    return next(wheels.glob("horovod-*.whl"))


def fetch_command(work: Path) -> tuple[str | Path, ...]:
    """The command that downloads source and cmake into a folder, with the lock's hashes."""
    # Modules that the build imports are in the environment's lock, so nothing is to be isolated.
    pip_build = ("--no-deps", "--no-build-isolation")
    download = (*PIP, "download", *pip_build, "--require-hashes", "--no-binary", "horovod")
    return (*download, "--dest", work, "-r", LOCK)


def build_environment(target: Target, work: Path) -> dict[str, str]:
    """The environment variables of the build."""
    makes_own = ("MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS", "MAKELEVEL", "CMAKE_GENERATOR")
    inherited = {name: text for name, text in os.environ.items() if name not in makes_own}
    # Horovod's messages say in which file of its source they arise.
    names = f"-ffile-prefix-map={work}/="
    strip = "-Wl,--strip-debug"  # of 113 MB of wheel, 110 are debugging information
    return (
        inherited
        | target.options
        | {
            "MAKEFLAGS": f"-j{min(os.cpu_count() or 1, MOST_COMPILERS)}",
            "CXXFLAGS": f"{names} {os.environ.get('CXXFLAGS', '')}".strip(),
            "LDFLAGS": f"{strip} {os.environ.get('LDFLAGS', '')}".strip(),
            "HOROVOD_CMAKE": str(work / "cmake" / "cmake" / "data" / "bin" / "cmake"),
        }
    )


def install(wheel: Path) -> None:
    """Installs a wheel, and tries to load its libraries.

    Raises:
        BuildError: It cannot be used here.
    """
    commands = (
        (*PIP, "install", "--quiet", "--no-deps", "--force-reinstall", wheel),
        (sys.executable, "-c", "import horovod.tensorflow, horovod.torch"),
    )
    for command in commands:
        done = run(command, PIP_SECONDS)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            raise BuildError(f"{wheel} cannot be used here: {reason[0]}")


def provide(target: Target, *, again: bool) -> None:
    """Installs the cached wheel, or builds it first.

    A build that failed is not tried again before something has changed.

    Args:
        target: What it is for.
        again: Try again nevertheless.

    Raises:
        BuildError: It cannot be installed.
    """
    kept = target.wheel()
    if kept is not None:
        try:
            install(kept)
        except BuildError as error:
            print(f"horovod: {error}", flush=True)
        else:
            return
    script = hashlib.sha256(Path(__file__).read_bytes() + LOCK.read_bytes()).hexdigest()
    attempt = target.facts | {"compiler": compiler(), "script": script}
    note = Path(sys.prefix) / ".horovod-failed.json"
    failed = json.loads(note.read_text()) if note.exists() else {}
    if failed.get("attempt") == attempt and not again:
        raise BuildError(failed["reason"])
    try:
        build(target)
        install(next(target.folder.glob("horovod-*.whl")))
    except BuildError as error:
        reason = f"{error}. `make horovod` tries again"
        note.write_text(json.dumps({"attempt": attempt, "reason": reason}))
        raise BuildError(reason) from error
    note.unlink(missing_ok=True)


def provide_or_remove(*, again: bool) -> None:
    """Installs Horovod; where that cannot be done, none of something else is left either.

    Raises:
        BuildError: It cannot be installed.
    """
    try:
        provide(this_target(), again=again)
    except BuildError:
        remove()
        raise


def remove() -> None:
    """Removes a Horovod that was built for something else, if there is one."""
    if importlib.util.find_spec("horovod"):
        run([*PIP, "uninstall", "--quiet", "--yes", "horovod"], PIP_SECONDS)


def run(command: Sequence[str | Path], seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; returns its output.

    Raises:
        BuildError: It takes longer.
    """
    try:
        return ended(command, seconds)
    except PackageError as error:
        raise BuildError(str(error)) from None


def main() -> int:
    """Installs Horovod if it can be built; returns the exit code."""
    parser = argparse.ArgumentParser(description="Builds and installs Horovod.")
    parser.add_argument("--again", action="store_true", help="even if it failed before")
    again = parser.parse_args().again
    try:
        provide_or_remove(again=again)
    except BuildError as error:
        print(
            f"warning: engine horovod will be unavailable, all else works: {error}", file=sys.stderr
        )
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
