"""What an embedding job is made with, checked on the driver and sent to the executors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import get_args

from pipelines.errors import InputError
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, location
from pipelines.models.folder import read_model
from pipelines.models.inference.backends import Precision, choose_backend
from pipelines.tokens.vocabulary import changed_tokenizer

KEY = "embedding.model"
QUANTISATIONS = ("none", "int8")
PRECISIONS: tuple[str, ...] = get_args(Precision)

_MODEL_FILES = ("*.json", "*.txt", "*.safetensors", "*.bin")


@dataclass(frozen=True, kw_only=True)
class EmbeddingOptions:
    """Plain values that a vector follows from, and how it is computed.

    Attributes:
        model: The model's folder, which every executor can reach; a version of it, in a store.
        model_sha256: Of its files, so that a folder that was replaced is loaded anew.
        hidden: Width of the model's embeddings.
        normalise: Whether the model scales them to length 1.
        backend: See :func:`pipelines.models.inference.embedder.load_embedder`, as for the next
            three.
        precision: Of the matrix products.
        threads: CPU threads of a task.
        batch_tokens: Tokens of one forward pass; None: what suits the device.
        prompt_name: Which of the model's prompts stands before each text; see
            :meth:`pipelines.tokens.start.Prompts.before`.
        dimensions: The first so many values of an embedding are kept.
        quantise: ``none``: float32; ``int8``: see :mod:`pipelines.embedding.vectors`.
    """

    model: Location
    model_sha256: str
    hidden: int
    normalise: bool
    backend: str = "auto"
    precision: str = "auto"
    threads: int = 1
    batch_tokens: int | None = None
    prompt_name: str | None = None
    dimensions: int
    quantise: str = "none"


def embedding_options(
    model: str | Location,
    *,
    backend: str = "auto",
    precision: str = "auto",
    threads: int = 1,
    batch_tokens: int | None = None,
    prompt_name: str | None = None,
    dimensions: int | None = None,
    quantise: str = "none",
) -> EmbeddingOptions:
    """Options that fit the model; see :class:`EmbeddingOptions`.

    Args:
        model: A folder that :func:`~pipelines.models.folder.read_model` reads.
        backend: A name, or ``auto``.
        precision: ``auto``, ``fp32`` or ``bf16``.
        threads: CPU threads of a task.
        batch_tokens: Tokens of one forward pass; None: what suits the device.
        prompt_name: `query`, `document` or another name of the model's prompts; None: its default,
            if it has one.
        dimensions: Values of an embedding to keep; None: all.
        quantise: ``none`` or ``int8``.

    Raises:
        InputError: There is no such model, backend, precision, prompt or quantisation, or the model
            is narrower.
    """
    folder = location(model).expanduser().absolute()
    if not folder.is_dir():
        raise InputError(KEY, f"there is no folder {folder}", "name a sentence-transformers folder")
    _check_known("embedding.quantise", quantise, QUANTISATIONS)
    _check_known("embedding.precision", precision, PRECISIONS)
    if batch_tokens is not None and batch_tokens < 1:
        raise InputError("embedding.batch_tokens", f"{batch_tokens} is too small", "1 or more")
    try:
        spec, _, _ = read_model(folder)
    except InputError as error:
        raise InputError(KEY, error.problem, error.remedy) from None
    spec.prompts.before(prompt_name)
    if dimensions is not None and not 1 <= dimensions <= spec.embedding_width:
        raise InputError(
            "embedding.dimensions",
            f"{dimensions} is not within the model's {spec.embedding_width}",
            f"1 to {spec.embedding_width}",
        )
    return EmbeddingOptions(
        model=folder,
        model_sha256=model_digest(folder),
        hidden=spec.embedding_width,
        normalise=spec.normalise,
        backend=choose_backend(backend, spec.kind),
        precision=precision,
        threads=threads,
        batch_tokens=batch_tokens,
        prompt_name=prompt_name,
        dimensions=dimensions or spec.embedding_width,
        quantise=quantise,
    )


def _check_known(key: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise InputError(key, f"there is no `{name}`", f"{', '.join(known[:-1])} or {known[-1]}")


def model_digest(folder: Location) -> str:
    """Digest of all files of a model that decide an embedding; its weights are not loaded."""
    local = local_folder(folder)
    digest = hashlib.sha256()
    for file in sorted(file for kind in _MODEL_FILES for file in local.rglob(kind)):
        digest.update(f"{file.relative_to(local)}\0".encode())
        found = file.stat()
        digest.update(_file_digest(file, found.st_ino, found.st_size, found.st_mtime_ns))
    # Vectors of a release that did not read the files beside tokenizer.json are of another model.
    digest.update((changed_tokenizer(local) or "").encode())
    return digest.hexdigest()


@lru_cache(maxsize=256)
def _file_digest(file: Path, *stamp: int) -> bytes:
    """Digest of a file; a process that asks for it again is not to read gigabytes again.

    Args:
        file: What is read.
        stamp: Changes when its content does.
    """
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()
