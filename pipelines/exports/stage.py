"""The export of a model: read, written in another form, compared with the model, put in place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import ModelCard, ModelCardData
from yaml import YAMLError

from pipelines import __version__
from pipelines.catalog import EXPORTS
from pipelines.errors import InputError, PipelineError
from pipelines.exports.base import ExportFormat, Source, compare
from pipelines.exports.pairs import check_found, found_texts
from pipelines.exports.texts import CheckTexts, check_texts
from pipelines.files import storage
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, is_within
from pipelines.files.ownership import EXPORT, check_ours
from pipelines.libraries import DRIVER, check_installed
from pipelines.models.folder import read_model
from pipelines.models.identity import (
    DOCUMENTS,
    EXPORT_FILE,
    FIELD,
    FILES,
    files_digest,
    model_digest,
)
from pipelines.models.inference.embedder import TextEmbedder, load_embedder
from pipelines.models.spec import UNLIMITED, EncoderSpec
from pipelines.progress import next_part
from pipelines.settings import Config
from pipelines.tokens.start import NO_PROMPTS

CARD = "README.md"
LEAST = 0.9999
"""The least cosine of an fp32 file's embedding with the model's."""
LEAST_INT8 = 0.95
"""The same of an int8 file, unless asked otherwise."""
STRETCH = 1e-3
"""The largest relative difference in length of an fp32 file's embeddings."""
_CARRIED = ("license", "license_name", "license_link", "language", "base_model", "datasets")
"""What the card of an export keeps of the model's."""


@dataclass(frozen=True)
class Exported:
    """A written export.

    Attributes:
        files: For each file of weights its precision, its size in bytes, and its :class:`Fit`.
        texts: The number of compared texts, and where they are from.
        lengths: The fewest and the most tokens of a compared text.
        notes: What an exact reader needs beyond the folder.
    """

    folder: Location
    model: Location
    files: Mapping[str, Mapping[str, Any]]
    texts: str
    lengths: tuple[int, int]
    notes: tuple[str, ...]


def check_export(to: str, output: Location, *, int8: bool) -> ExportFormat:
    """Return the form of a name; refuse what cannot be written, before a model is read.

    Raises:
        InputError: There is no such form, its library is missing, it has no int8, or the folder
            holds other files than an export's.
    """
    EXPORTS.check(to)
    check_ours("--output", output, EXPORT, whole=True)
    form = _loaded(to)
    for library in form.libraries:
        check_installed("--to", library, "export", DRIVER)
    if int8 and form.int8 is not None:
        raise InputError("--int8", form.int8, "Leave it out, or export to onnx")
    return form


def _loaded(to: str) -> ExportFormat:
    try:
        form: ExportFormat = EXPORTS.load(to)
    except ModuleNotFoundError as error:
        check_installed("--to", (error.name or "").partition(".")[0], "export", DRIVER)
        raise
    return form


def export_model(
    config: Config,
    model: Location,
    output: Location,
    to: str,
    *,
    documents: Location | None = None,
    int8: bool = False,
    least_int8: float = LEAST_INT8,
) -> Exported:
    """Write a model in another form into a folder, once it is compared with the model.

    The settings name the corpus of the compared texts. An existing export is replaced.
    ``documents`` is the second model of a form of two, which embeds documents.

    Raises:
        InputError: See :func:`check_export` and :func:`pipelines.models.folder.read_model`; or int8
            moves a vector further than ``least_int8`` allows; or two models do not fit together.
        PipelineError: The vectors differ, or the model was replaced meanwhile.
    """
    form = check_export(to, output, int8=int8)
    assert form.is_pair == (documents is not None), "as the form is"
    models = [model] if documents is None else [model, documents]
    for folder in models:
        if is_within(output.resolve(), folder.resolve()):
            problem = f"{output} lies in the model {folder}, whose digest it would change"
            raise InputError("--output", problem, "Name a folder beside it")
    next_part("reading the model")
    source, *second = map(_read, models)
    source = replace(source, documents=second[0] if second else None)
    form.check(source.spec)
    texts = check_texts(config, max(read.spec.max_length for read in (source, *second)))
    with storage.built_folder(output) as aside:
        next_part(f"writing it for {to}")
        precisions = form.write(source, aside, int8)
        next_part("comparing embeddings")
        exported = _compared(form, source, aside, precisions, texts)
        _check_fits(exported.files, least_int8)
        storage.write_json(aside / EXPORT_FILE, _record(to, form, source, exported))
        storage.write_text(aside / CARD, _card(to, form, source, exported))
        for folder, read in zip(models, (source, *second), strict=True):
            if model_digest(folder) != read.digest:
                raise PipelineError(f"{folder} was replaced during its export: export it again")
    return Exported(**{**vars(exported), "folder": output, "model": model})


def _read(model: Location) -> Source:
    digest = model_digest(model)
    folder = local_folder(model)
    return Source(folder, *read_model(folder), digest)


def _compared(
    form: ExportFormat,
    source: Source,
    folder: Path,
    precisions: Mapping[str, str],
    texts: CheckTexts,
) -> Exported:
    models = [source] if source.documents is None else [source, source.documents]
    # By the backend of `embed`: tables of vectors and this export are used together.
    embedders = [load_embedder(model.folder, threads=os.cpu_count() or 1) for model in models]
    notes: list[str] = []
    if source.documents is not None:
        given = list(texts.given)
        found = found_texts(embedders[0].queries(given), embedders[1].documents(given))
        check_found(found)
        notes.append(str(found))
    expected = {
        model.digest: _expected(embed, texts)
        for model, embed in zip(models, embedders, strict=True)
    }
    files = {
        file: {
            "precision": precision,
            "bytes": _size(folder, file),
            **asdict(
                compare(
                    form.open(folder, file), texts, expected[form.model_of(source, file).digest]
                )
            ),
        }
        for file, precision in precisions.items()
    }
    notes += form.notes(folder, texts.every, expected[source.digest])
    lengths = [
        min(len(text.ids), model.spec.max_length)
        for model in models
        for text in model.tokenizer.encode_batch_fast(list(texts.every))
    ]
    return Exported(
        folder=folder,
        model=folder,
        files=files,
        texts=f"{len(texts.every)} texts, {len(texts.every) - len(texts.own)} {texts.origin}",
        lengths=(min(lengths), max(lengths)),
        notes=tuple(notes),
    )


def _expected(embed: TextEmbedder, texts: CheckTexts) -> np.ndarray:
    """Return the embeddings of a model without prompts, fp32 [texts, width]."""
    embed.prompts = NO_PROMPTS
    return embed(list(texts.every))


def _size(folder: Path, file: str) -> int:
    """Return the bytes of a file of weights, with the file beside it that has its numbers."""
    path = folder / file
    beside = (path.with_suffix(".bin"), path.with_name(f"{path.name}_data"))
    return sum(found.stat().st_size for found in (path, *beside) if found.is_file())


def _check_fits(files: Mapping[str, Mapping[str, Any]], least_int8: float) -> None:
    for file, facts in files.items():
        least, stretch = facts["least_cosine"], facts["stretch"]
        if facts["precision"] == "int8":
            if least < least_int8:
                raise InputError(
                    "--int8",
                    f"it moves the vectors down to a cosine of {least:.4f} with the model's, "
                    f"below {least_int8:g}",
                    "Leave it out, or allow it by --least-cosine",
                )
        elif least < LEAST or stretch > STRETCH:
            raise PipelineError(
                f"the vectors of {file} are not the model's (least cosine {least:.6f}, lengths "
                f"differ by up to {100 * stretch:.2g} %), so nothing was written"
            )


def _record(to: str, form: ExportFormat, source: Source, exported: Exported) -> dict[str, Any]:
    second: dict[str, Any] = {}
    if source.documents is not None:
        # The files are all there but this record; the digest leaves the card out.
        files = {FILES: files_digest(exported.folder)}
        second[DOCUMENTS] = _facts(source.documents) | files
    return {
        **_facts(source),
        **second,
        "runtime": to,
        "width": source.spec.embedding_width,
        **form.facts,
        "files": exported.files,
        "compared": {"texts": exported.texts, "tokens": exported.lengths},
        "notes": exported.notes,
        "versions": {"sentence-pipelines": __version__, **dict(_versions(form))},
    }


def _facts(model: Source) -> dict[str, Any]:
    spec = model.spec
    return {FIELD: model.digest, "max_length": spec.max_length, "normalised": spec.normalise}


def _versions(form: ExportFormat) -> Iterator[tuple[str, str]]:
    for library in ("tokenizers", *form.libraries):
        try:
            yield library, version(library)
        except PackageNotFoundError:
            continue


def _card(to: str, form: ExportFormat, source: Source, exported: Exported) -> str:
    data = ModelCardData(
        **_carried(source.folder),
        pipeline_tag="sentence-similarity",
        tags=[to, "sentence-similarity", "feature-extraction", "sentence-pipelines"],
    )
    body = "\n".join(_body(to, form, source, exported))
    return f"---\n{data.to_yaml()}\n---\n\n{body}"


def _length(spec: EncoderSpec) -> str:
    return "whole texts" if spec.max_length == UNLIMITED else f"{spec.max_length:,} tokens"


def _carried(folder: Path) -> dict[str, Any]:
    """Return licence, languages and origin of the model, as its own card has them."""
    path = folder / CARD
    # A card may be of an editor that writes a byte order mark, or of another encoding.
    text = path.read_text("utf-8-sig", "replace") if path.is_file() else ""
    if not text.startswith("---"):
        return {}
    try:
        found = ModelCard(text, ignore_metadata_errors=True).data
    except (YAMLError, ValueError):
        return {}
    return {name: found.get(name) for name in _CARRIED if found.get(name) is not None}


def _body(to: str, form: ExportFormat, source: Source, exported: Exported) -> Iterator[str]:
    spec = source.spec
    length = _length(spec)
    title = "A pair of sentence encoders" if source.documents else f"A sentence encoder for {to}"
    yield from (f"# {title}", "")
    if source.documents is not None:
        length += f" of a query and {_length(source.documents.spec)} of a document"
    yield f"It reads {length}, and gives {spec.embedding_width} numbers. An export of the model"
    yield f"with the digest `{source.digest}`."
    if source.documents is not None:
        yield f"Documents go through the model with the digest `{source.documents.digest}`."
        licence = _carried(source.documents.folder).get("license")
        yield f"Its licence is {licence}." if licence else "Its card names no licence."
    yield ""
    least, most = exported.lengths
    compared = f"{exported.texts}, of {least} to {most:,} tokens"
    yield f"Compared with {'these models' if source.documents else 'that model'} on {compared}:"
    yield from ("", "| file | precision | MB | least cosine | mean |", "|---|---|--:|--:|--:|")
    for file, facts in exported.files.items():
        figures = f"{facts['least_cosine']:.6f} | {facts['mean_cosine']:.6f}"
        yield f"| `{file}` | {facts['precision']} | {facts['bytes'] / 1e6:.1f} | {figures} |"
    yield from ("", *exported.notes, *([""] if exported.notes else []))
    named = [(name, text) for name, text in spec.prompts.texts if text]
    # A reader of two models knows which text has which prompt.
    if named and source.documents is None:
        yield "Put the prompt of its kind before each text:"
        # As JSON: a prompt may have several lines.
        shown = (f"- {name}: `{json.dumps(text, ensure_ascii=False)}`" for name, text in named)
        yield from ("", *shown, "")
    yield from ("## Use", "", "Run these lines in this folder.", "")
    yield from form.usage(source, exported.files)
