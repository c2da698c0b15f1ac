"""The cells of the table: a reader's vectors beside those of sentence-transformers."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from deadlines import ended
from errors import PackageError

from compatibility import probe
from compatibility.environments import OWN, Environment, digest, python_of
from compatibility.models import MODELS, TEXTS
from pipelines.models.identity import model_digest

LIST = Path(__file__).resolve().parents[1] / "compatibility.toml"
COSINE = 0.9999
"""The least cosine of equal vectors."""
LENGTH = 0.01
"""The largest difference of two equal vectors' lengths, of the expected one."""
ALIKE = 0.995
"""The largest cosine of two different texts: of more alike ones, a comparison would say little."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Reader:
    """A row of the table.

    Attributes:
        name: For people.
        environment: The name of its environment.
        probe: The function of :mod:`compatibility.probe`.
        shows: Packages whose releases the table names.
        reads: What it reads: the `folder`, or the name of an export of :data:`EXPORTS`.
        alone: Whether each model has a process of its own.
        seconds: That a model may take.
    """

    name: str
    environment: str
    probe: str
    shows: tuple[str, ...]
    reads: str = "folder"
    alone: bool = False
    seconds: float = 240.0


@dataclass(frozen=True)
class Export:
    """A command that writes an ONNX folder of a model folder.

    Attributes:
        environment: In which it runs.
        command: Its arguments behind Python's; `{folder}` and `{target}` are replaced.
        seconds: That it may take.
    """

    environment: str
    command: tuple[str, ...]
    seconds: float = 300.0


@dataclass(frozen=True)
class Listed:
    """What environment/compatibility.toml holds, by name; the first reader is the reference."""

    environments: Mapping[str, Environment]
    exports: Mapping[str, Export]
    readers: Mapping[str, Reader]

    @property
    def reference(self) -> Reader:
        """The reader whose vectors the others are compared with."""
        return next(iter(self.readers.values()))


def read_list(text: str) -> Listed:
    """Return the content of the list."""
    raw = tomllib.loads(text)
    return Listed(
        {name: Environment(name, **_fields(one)) for name, one in raw["environments"].items()},
        {name: Export(**_fields(one)) for name, one in raw["exports"].items()},
        {name: Reader(name, **_fields(one)) for name, one in raw["readers"].items()},
    )


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }


def texts_of(model: str) -> dict[str, list[str]]:
    """Return the texts of a model by the name of their prompt, `""` for none."""
    return {name: list(TEXTS) for name in MODELS[model].prompts or ("",)}


def judged(expected: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two results of a probe.

    Returns:
        `verdict` (`equal`, `refuses` or `differs`), and `error` or the least `cosine`, the largest
        difference of `length`, and the `width`.
    """
    if "error" in found:
        return {"verdict": "refuses", "error": found["error"]}
    cosines, lengths = [], []
    for name, vectors in expected["vectors"].items():
        one, other = (np.array(both, np.float64) for both in (vectors, found["vectors"][name]))
        if one.shape != other.shape:
            width = other.shape[-1] if other.ndim else 0
            return {"verdict": "differs", "width": width}
        norms = [np.linalg.norm(both, axis=1) for both in (one, other)]
        cosines.append((one * other).sum(axis=1) / np.maximum(norms[0] * norms[1], 1e-12))
        lengths.append(abs(norms[1] / norms[0] - 1))
    cosine, length = float(np.min(cosines)), float(np.max(lengths))
    same = cosine >= COSINE and length <= LENGTH
    return {"verdict": "equal" if same else "differs", "cosine": cosine, "length": length}


def check_distinct(model: str, expected: Mapping[str, Any]) -> None:
    """Refuse a reference that would make every reader look equal.

    Raises:
        PackageError: The reference refuses the model, or takes different texts for one another.
    """
    if "error" in expected:
        raise PackageError(f"the reference cannot read {model}: {expected['error']}")
    for vectors in expected["vectors"].values():
        scaled = np.array(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = scaled @ scaled.T - 2 * np.eye(len(scaled))
        if cosines.max() > ALIKE:
            raise PackageError(f"two texts have a cosine of {cosines.max():.4f} in {model}")


@dataclass
class Results:
    """The finished cells in a file; a cell counts while all that it came from is the same."""

    path: Path
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return the results in a file, which need not exist."""
        return cls(path, json.loads(path.read_text()) if path.is_file() else {})

    def get(self, reader: str, model: str, key: str) -> dict[str, Any] | None:
        """Return a cell; None unless it was made from the same."""
        found = self.cells.get(f"{reader} / {model}")
        return found if found and found["key"] == key else None

    def last(self, reader: str, model: str) -> dict[str, Any] | None:
        """Return a cell, whatever it was made from."""
        return self.cells.get(f"{reader} / {model}")

    def put(self, reader: str, model: str, cell: dict[str, Any]) -> None:
        """Keep a cell."""
        self.cells[f"{reader} / {model}"] = cell
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_suffix(".new")
        aside.write_text(json.dumps(self.cells, indent=1, sort_keys=True) + "\n")
        aside.replace(self.path)


def cell_key(listed: Listed, reader: Reader, folder: Path) -> str:
    """Return a digest of all that a cell comes from."""
    code = inspect.getsource(probe.PROBES[reader.probe]) + inspect.getsource(probe.pooled)
    export = listed.exports.get(reader.reads)
    parts = [code, digest(reader.environment, listed.environments), model_digest(folder)]
    parts += [reader.reads, json.dumps(TEXTS)]
    if export:
        parts += [json.dumps(export.command), digest(export.environment, listed.environments)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def probe_models(
    listed: Listed, reader: Reader, folders: Mapping[str, Path], home: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the result of a reader's probe of each model.

    A process takes the models one after the other. Where it dies or hangs, its model has that as
    error, and another process takes the rest.

    Raises:
        PackageError: The reader's environment cannot be made.
    """
    python = python_of(reader.environment, listed.environments, home / "environments")
    left: dict[str, dict[str, Any]] = {}
    for model, folder in folders.items():
        made = exported(listed, reader.reads, model, folder, home)
        if isinstance(made, Path):
            # An export may leave the prompts out; whoever serves it knows those of the model.
            asked = {"model": model, "folder": str(made), "prompts": prompts_in(folder)}
            left[model] = {**asked, "texts": texts_of(model)}
        else:
            yield model, {"error": made}
    while left:
        names = list(left)[:1] if reader.alone else list(left)
        done, ending = run_probe(python, reader, [left[name] for name in names])
        if len(done) < len(names):
            done.append({"model": names[len(done)], "error": ending})
        for result in done:
            model = result.pop("model")
            left.pop(model)
            yield model, result


def run_probe(
    python: Path, reader: Reader, asked: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], str]:
    """Run a probe; return the results that it wrote, in order, and how it ended otherwise."""
    with tempfile.TemporaryDirectory() as place:
        request, results, log = (Path(place, name) for name in ("request", "results", "log"))
        request.write_text(json.dumps(asked))
        # Without the folder of the probe, whose modules have the names of libraries.
        command = [str(python), "-P", probe.__file__, reader.probe, str(request), str(results)]
        ending = "the process died"
        try:
            with log.open("w") as out:
                ended(
                    command,
                    reader.seconds * len(asked),
                    env=variables(reader.environment),
                    log=out,
                    cwd=Path(place),
                )
        except PackageError:
            ending = "it did not end in time"
        lines = results.read_text().splitlines() if results.is_file() else []
        if len(lines) < len(asked):
            print(f"{reader.name}: {ending}\n{tail(log)}", file=sys.stderr)
        return [json.loads(line) for line in lines], ending


def tail(log: Path, lines: int = 15) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def prompts_in(folder: Path) -> dict[str, str]:
    """Return the prompts in a folder, by name."""
    file = folder / "config_sentence_transformers.json"
    found = json.loads(file.read_text())["prompts"] if file.is_file() else {}
    return {name: text for name, text in found.items() if text}


def exported(listed: Listed, name: str, model: str, folder: Path, home: Path) -> Path | str:
    """Return an export of a model folder, or the error of its command; `folder` is the folder."""
    export = listed.exports.get(name)
    if export is None:
        return folder
    key = [json.dumps(export.command), digest(export.environment, listed.environments)]
    key = [hashlib.sha256("\0".join([*key, model_digest(folder)]).encode()).hexdigest()[:16]]
    target = home / "exports" / name / f"{model}-{key[0]}"
    if not target.is_dir():
        python = python_of(export.environment, listed.environments, home / "environments")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as place:
            aside = Path(place, "export")
            words = [word.format(folder=folder, target=aside) for word in export.command]
            try:
                done = ended([python, *words], export.seconds, env=variables(export.environment))
            except PackageError:
                return "the export did not end in time"
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if line.strip()]
                return (lines or ["the export failed"])[-1][: probe.ERROR_LENGTH]
            aside.rename(target)
    return target


def variables(environment: str) -> dict[str, str]:
    """Return the environment variables of an environment: offline, without this project."""
    kept = dict(os.environ)
    if environment != OWN:
        for name in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"):
            kept.pop(name, None)
    return kept | OFFLINE


def select(known: Sequence[str], asked: Sequence[str], kind: str) -> list[str]:
    """Return the known names that are asked for: all, or those that contain one of the words.

    Raises:
        PackageError: A word fits none.
    """
    for word in asked:
        if not any(word in name for name in known):
            raise PackageError(f"there is no {kind} {word}: name some of {', '.join(known)}")
    return [name for name in known if not asked or any(word in name for word in asked)]
