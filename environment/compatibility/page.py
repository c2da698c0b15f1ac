"""docs/reference/compatibility.md, from the results of `make compatibility`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from compatibility.cells import Listed, Reader, Results
from compatibility.models import MODELS

_FOLDER = re.compile(r"(?:file://)?/[\w./+-]*?/(?:models|exports/[\w-]+)/[\w-]+")
_PATH = re.compile(r"(?<!\w)(?:/[\w+-][\w.+-]*){2,}")
_MEANING = {"equal": "equal", "differs": "**differs**", "refuses": "refuses"}
_ERROR_WORDS = 160


def page(listed: Listed, results: Results) -> str:
    """Return the page as Markdown."""
    notes: dict[str, int] = {}
    rows = [row(listed.readers[name], results, notes) for name in listed.readers]
    lines = [
        "<!-- Written by `make compatibility`; edit environment/compatibility instead. -->\n",
        "# Compatibility\n",
        INTRODUCTION,
        "| reader | " + " | ".join(MODELS) + " |",
        "|---|" + "---|" * len(MODELS),
        *rows,
        "",
        TEI,
        "## Errors\n",
        ERRORS,
        *(f"{number}. {error}" for error, number in notes.items()),
        "",
        "## Models\n",
        *(f"- `{name}`: {model.about}" for name, model in MODELS.items()),
        "",
        "## Readers\n",
        "| reader | reads | releases |",
        "|---|---|---|",
        *(described(reader, results) for reader in listed.readers.values()),
        "",
        NOTES,
    ]
    return "\n".join(lines)


def row(reader: Reader, results: Results, notes: dict[str, int]) -> str:
    """Return a row of the table; numbers of new errors go into the notes."""
    cells = []
    for model in MODELS:
        found = results.last(reader.name, model)
        cells.append(shown(found, notes) if found else "not run")
    return f"| {reader.name} | " + " | ".join(cells) + " |"


def shown(cell: Mapping[str, Any], notes: dict[str, int]) -> str:
    """Return a cell."""
    word = _MEANING[cell["verdict"]]
    if cell["verdict"] != "refuses":
        return word
    number = notes.setdefault(short(cell["error"]), len(notes) + 1)
    return f"{word} [{number}](#errors)"


def short(error: str) -> str:
    """Return an error in a few words, without paths of a machine, as code."""
    text = _PATH.sub("PATH", _FOLDER.sub("FOLDER", error))
    text = text if len(text) <= _ERROR_WORDS else f"{text[:_ERROR_WORDS].rsplit(' ', 1)[0]} …"
    return "`" + text.replace("`", "'").replace("|", "/") + "`"


def described(reader: Reader, results: Results) -> str:
    """Return the row of a reader's releases."""
    cells = (results.last(reader.name, model) for model in MODELS)
    releases: dict[str, str] = next((cell["versions"] for cell in cells if cell), {})
    versions = ", ".join(f"{name} {version}" for name, version in sorted(releases.items()))
    reads = READS[reader.reads]
    return f"| {reader.name} | {reads} | {versions or 'not run'} |"


READS = {
    "folder": "the model folder",
    "optimum": "`optimum-cli export onnx --library-name sentence_transformers`",
    "sentence-pipelines": "`sentence-pipelines export --to onnx`",
    "model2vec": "`sentence-pipelines export --to model2vec`",
}
INTRODUCTION = """\
Each reader embedded the same 20 texts by the code in
[serve with other libraries](../guides/serve-with.md). One text is longer than the model reads. A
cell is `equal` if the least cosine to the vectors of the first reader is at least 0.9999, and if
lengths differ by at most 1 %. A cell `refuses` if the reader raises an error, quoted below. No
reader may return other vectors: the command then ends with exit code 1.
"""
ERRORS = """\
`FOLDER` is the model. `AutoModel` and optimum compute the states of a transformer, and the guide's
code pools them: it refuses modules that it does not compute.
"""
TEI = """\
Text Embeddings Inference was not run, because no registry carries its binaries.
[A test](../../tests/models/test_inference_server_rules.py) holds the folders against the rules of
its parser (release 1.9.3). By them it serves BERT, DistilBERT, MPNet, XLM-RoBERTa, ModernBERT,
Qwen3 and Gemma 3 with their pooling, Dense layers and prompts. It refuses lexical features, static
embeddings and weighted mean pooling. On a CPU it refuses Llama.
"""
NOTES = """\
## Run it

    make compatibility                                            # all cells that are not kept
    make compatibility ARGS="--reader fastembed --model static"   # some; words of the names
    make compatibility ARGS=--page                                # writes this page only

`build/compatibility` keeps environments (6 GB without CUDA), models and results. A cell runs again
after its reader, its environment or its model has changed. `environment/compatibility.toml` pins
the releases. None of them is in `.venv`, except MLflow.

The two lines in the README of an export for model2vec belong to the code. Without them, model2vec
leaves unknown words out, and cuts long texts by their characters.

Texts begin and end without white space: sentence-transformers strips it before release 5.4 and
keeps it from then on.
"""
