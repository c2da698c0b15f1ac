"""Packs what the machines of a cluster need to run a job: the wheel, and an environment.

The environment is one archive that ``spark-submit --archives environment.tar.gz#environment``
unpacks on every machine: a Python with its standard library, and the packages of the engines that
are asked for, in the versions of ``requirements.lock``, or of another lock. It runs wherever it is
put, and needs no other Python there. Equal packages give an equal archive.

``make package`` runs it, with the Python of the environment that ``make environment`` made:

    python environment/build_package.py --engines torch horovod --with evaluation java

Exit codes: 0 when both files are in ``dist/``; 2 when they are not, and one line on standard error
says why. Nothing half-written takes their place.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import shutil
import stat
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import packages
from deadlines import ended
from errors import PackageError
from interpreter import assumed, copy_interpreter
from isal import igzip_threaded

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
ARCHIVE = "environment.tar.gz"
# What the jobs use beside an engine: see the extras of pyproject.toml.
EXTRAS = ("evaluation", "report", "languages", "default-encoder")
# What an engine loads on executors, tried before it is packed.
IMPORTS = {
    "local": ("tensorflow",),
    "bigdl": ("bigdl.dllib.nncontext", "bigdl.orca", "torch"),
    "deepspeed": ("deepspeed", "torch"),
    "elephas": ("elephas.spark_model", "tf_keras"),
    "horovod": ("horovod.tensorflow", "horovod.torch"),
    "megatron": ("megatron.core", "torch"),
    "mesh": ("pipelines.engines.mesh.library",),
    "tensorflowonspark": ("tensorflow", "tensorflowonspark.TFCluster", "cryptography.x509"),
    "torch": ("torch.distributed",),
}
TIME_OF_FILES = 315532800  # 1980-01-01, the first moment that a wheel knows
LEVEL = 3  # of isal; its largest
PIP_SECONDS = 900.0  # pip copies and compiles what is here; it downloads nothing
IMPORT_SECONDS = 900.0
COMPILE_SECONDS = 3600.0


@dataclass(frozen=True)
class Facts:
    """The content of an environment's `environment.json`.

    Attributes:
        engines: That it is for.
        extras: That it has beside them.
        machine: Architecture of the processor.
        glibc: The C library's version that a machine needs at least.
        libraries: Shared libraries that a machine needs beside the C library's.
        versions: Of the packages.
    """

    engines: list[str]
    extras: list[str]
    machine: str
    glibc: str
    libraries: list[str]
    versions: dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds both files; gives the exit code."""
    asked = parser().parse_args(arguments)
    try:
        with only_builder():
            build(sorted(set(asked.engines)), sorted(set(asked.extras)), asked.lock)
    except (PackageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="Packs the wheel and an environment for a cluster.")
    made.add_argument(
        "--engines",
        nargs="+",
        choices=sorted(IMPORTS),
        default=["tensorflowonspark"],
        metavar="ENGINE",
        help=f"of {', '.join(sorted(IMPORTS))}; by default that of training.engine",
    )
    made.add_argument(
        "--with",
        dest="extras",
        nargs="*",
        default=list(EXTRAS),
        metavar="EXTRA",
        help="further extras of pyproject.toml, or `spark` for Spark itself, which a cluster has;"
        f" {', '.join(EXTRAS)} by default",
    )
    made.add_argument(
        "--lock",
        type=Path,
        default=ROOT / "requirements.lock",
        help="what this environment was made from; requirements.lock by default",
    )
    return made


@contextlib.contextmanager
def only_builder() -> Iterator[None]:
    """Locks ``dist/`` for this process, and removes what a killed one has left there.

    Raises:
        PackageError: Another one is at work.
    """
    DIST.mkdir(exist_ok=True)
    with (DIST / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PackageError(f"another build is writing into {DIST}: wait for its end") from None
        for left in DIST.glob(".part-*"):
            shutil.rmtree(left)
        yield


def build(engines: Sequence[str], extras: Sequence[str], lock: Path) -> None:
    """Builds the wheel and the tree of the environment, tries its imports, and packs it.

    Raises:
        PackageError: Something is missing, or what was built does not run.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".part-", dir=DIST) as work:
        wheel = build_wheel(Path(work))
        say(f"{wheel.name}: {size(wheel.stat().st_size)}")
        tree = Path(work) / "environment"
        parts = fill(tree, wheel, engines, extras, lock)
        show(parts)
        compile_modules(tree)
        try_imports(tree, engines)
        facts = describe(tree, parts, engines, extras)
        (tree / "environment.json").write_text(json.dumps(asdict(facts), indent=2) + "\n")
        total = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file())
        archive = Path(work) / ARCHIVE
        started = time.monotonic()
        pack(tree, archive)
        say(
            f"{ARCHIVE}: {size(archive.stat().st_size)}, unpacked {size(total)}; packed in"
            f" {time.monotonic() - started:.0f} s"
        )
        needs = ", ".join([facts.machine, f"glibc {facts.glibc}", *facts.libraries])
        say(f"every machine needs {needs}, and bash, tar and gzip")
        # Last, both at once: until here nothing in dist/ has changed.
        for old in DIST.glob("sentence_pipelines-*.whl"):
            old.unlink()
        for made in (wheel, archive):
            made.replace(DIST / made.name)
    say(f"in {DIST}, after {time.monotonic() - began:.0f} s in all")


def build_wheel(work: Path) -> Path:
    """Builds the wheel of a copy of the source: setuptools leaves folders behind in the original.

    Raises:
        PackageError: With the last line of pip.
    """
    source = work / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pipelines", source / "pipelines", ignore=unwanted)
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(work))
    run_pip(["wheel", *options, str(source)], SOURCE_DATE_EPOCH=str(TIME_OF_FILES))
    return next(work.glob("sentence_pipelines-*.whl"))


def run_pip(arguments: Sequence[str], **variables: str) -> None:
    """Runs pip.

    Raises:
        PackageError: With its last line, or it takes too long.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = ended(command, PIP_SECONDS, env=os.environ | variables)
    if done.returncode:
        raise PackageError(f"pip {arguments[0]} failed: {last_line(done.stderr)}")


def fill(
    tree: Path, wheel: Path, engines: Sequence[str], extras: Sequence[str], lock: Path
) -> list[packages.Part]:
    """Makes the tree of the environment; gives what is in it.

    Raises:
        PackageError: An extra is unknown, or a package is not installed as the lock has it.
    """
    project = next(iter(metadata.distributions(path=[str(wheel)])))
    known = {*project.metadata.get_all("Provides-Extra", ())}
    if unknown := sorted({*engines, *extras} - known):
        raise PackageError(f"there is no extra {', '.join(unknown)}: {', '.join(sorted(known))}")
    locked = packages.locked_versions(lock)
    # Of Spark its Python comes along in any case, since the jobs import it.
    roots = packages.required(project.requires or (), [*engines, *extras, packages.SPARK])
    chosen = packages.closure(roots, locked)
    say(f"{len(chosen)} packages for {', '.join([*engines, *extras])}")
    folder = copy_interpreter(tree)
    copied = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file())
    parts = [packages.Part("Python", platform.python_version(), copied, 0)]
    spark = packages.SPARK in extras
    parts += [packages.place(distribution, folder, spark=spark) for distribution in chosen]
    # By its name: pip would note the path of a file.
    options = ("--no-index", "--find-links", str(wheel.parent), "--target", str(folder))
    run_pip(["install", "--no-deps", "--no-compile", *options, project.name])
    shutil.rmtree(folder / "bin")
    for command in project.entry_points.select(group="console_scripts"):
        write_command(tree / "bin" / command.name, command)
    return parts


def write_command(path: Path, command: metadata.EntryPoint) -> None:
    """Writes a console command that finds the Python beside it."""
    call = f"import sys; from {command.module} import {command.attr} as main; sys.exit(main())"
    path.write_text(
        f'#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/python" -c \'{call}\' "$@"\n'
    )
    path.chmod(0o755)


def try_imports(tree: Path, engines: Sequence[str]) -> None:
    """Imports what the engines import, from the tree only.

    Raises:
        PackageError: Something does not load, or comes from outside of the tree.
    """
    modules = sorted({"pipelines.cli", *(name for engine in engines for name in IMPORTS[engine])})
    # The files mapped into memory show shared libraries from elsewhere, too.
    script = (
        f"import {', '.join(modules)}\n"
        "import sys\n"
        "lines = open('/proc/self/maps').read().splitlines()\n"
        "mapped = {line.split(maxsplit=5)[5] for line in lines if line.count('/')}\n"
        "files = {getattr(module, '__file__', None) for module in sys.modules.values()}\n"
        "used = mapped | {file for file in files if file}\n"
        f"print(*sorted(file for file in used if file.startswith({elsewhere()!r})), sep='\\n')\n"
    )
    say(f"trying {', '.join(modules)}")
    done = ended(
        [tree / "bin" / "python", "-B", "-c", script],
        IMPORT_SECONDS,
        env={"JAVA_HOME": os.environ.get("JAVA_HOME", ""), "HOME": "/nonexistent"},
    )
    if done.returncode:
        raise PackageError(f"the environment does not load: {last_line(done.stderr)}")
    used = [line for line in done.stdout.splitlines() if not line.startswith(str(tree))]
    if any(line.startswith("/") for line in used):
        raise PackageError(f"the environment uses files that are not in it: {', '.join(used)}")


def elsewhere() -> tuple[str, ...]:
    """Folders whose files the environment must not use."""
    return (sys.prefix, sys.base_prefix if sys.base_prefix != "/usr" else "/usr/lib/python")


def last_line(text: str) -> str:
    """The last line of an output, which names the error."""
    return (text.strip().splitlines() or ["no reason given"])[-1]


def describe(
    tree: Path, parts: Sequence[packages.Part], engines: Sequence[str], extras: Sequence[str]
) -> Facts:
    """What is in an environment, and what it needs."""
    glibc, libraries = assumed(tree)
    versions = {part.name: part.version for part in parts}
    return Facts(list(engines), list(extras), platform.machine(), glibc, libraries, versions)


def compile_modules(tree: Path) -> None:
    """Compiles all modules, as Python would at their first import on every executor anew.

    By the hash of the source that is not looked at again, since times would differ.

    Raises:
        PackageError: It takes too long.
    """
    # -B: what compileall itself imports would be compiled by its time after all.
    command = [
        "-B",
        "-m",
        "compileall",
        "-q",
        "-q",
        "-j",
        "0",
        "--invalidation-mode",
        "unchecked-hash",
    ]
    # Some packages bring templates that are no Python, for which the exit code is not 0.
    ended([tree / "bin" / "python", *command, "-s", tree, tree], COMPILE_SECONDS, env={})


def pack(tree: Path, archive: Path) -> None:
    """Writes a tree as an archive without times, paths of this machine and owners."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = TIME_OF_FILES
        runs = member.isdir() or member.mode & stat.S_IXUSR
        member.mode = 0o755 if runs else 0o644
        return member

    with (
        igzip_threaded.open(archive, "wb", compresslevel=LEVEL, threads=os.cpu_count() or 1) as out,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(tree.rglob("*")):
            member = tar.gettarinfo(path, str(path.relative_to(tree)))
            # A second name of a file is stored as a file: it is linked to the environment here.
            if path.is_file() and not path.is_symlink():
                member.type, member.linkname = tarfile.REGTYPE, ""
                member.size = path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(plain(member), file)
            else:
                tar.addfile(plain(member))


def show(parts: Sequence[packages.Part]) -> None:
    """Prints the largest packages."""
    for part in sorted(parts, key=lambda part: -part.size)[:10]:
        dropped = f", {size(part.left_out)} left out" if part.left_out >= 1e6 else ""
        say(f"  {part.name} {part.version}: {size(part.size)}{dropped}")
    rest = sum(part.size for part in sorted(parts, key=lambda part: -part.size)[10:])
    say(f"  {max(len(parts) - 10, 0)} more: {size(rest)}")


def size(count: float) -> str:
    """A number of bytes with its unit."""
    return f"{count / 1e6:,.1f} MB"


def say(text: str) -> None:
    """Prints a line of progress."""
    print(f"package: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
