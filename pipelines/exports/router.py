"""Router: a small model for queries and a large one for documents, as one folder.

Each route has the modules of its model, so sentence-transformers sends a query through the one and
a document through the other. The route of documents is the default.

Source of such pairs: Vujanic and Rueckstieß, "LEAF: Knowledge Distillation of Text Embedding Models
with Teacher-Aligned Representations", 2025, arXiv:2509.12539.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.errors import InputError
from pipelines.exports.base import Embed, ExportFormat, Source
from pipelines.exports.folder import fenced, listed_type, write_modules
from pipelines.files import storage
from pipelines.models.folder import write_encoder_modules
from pipelines.models.sentence_modules import CONFIG_FILE
from pipelines.models.weights import WEIGHT_FILE
from pipelines.tokens.router import ROUTER_FILE, SIDES
from pipelines.tokens.start import DOCUMENT, PROMPTS_FILE, QUERY, ROUTER, Prompts

PLAIN = "default"
"""The prompt of other texts, where the model of documents takes its prompt of queries for them."""


def write(source: Source, folder: Path, int8: bool) -> dict[str, str]:
    """See :class:`ExportFormat`."""
    assert not int8 and source.documents is not None, "refused before"
    check_pair(source, source.documents)
    routes = {
        side: _write_route(folder, side, model)
        for side, model in zip(SIDES, (source, source.documents), strict=True)
    }
    storage.write_json(
        folder / ROUTER_FILE,
        {
            "types": {
                name: listed_type(kind) for route in routes.values() for name, kind in route.items()
            },
            "structure": {side: list(route) for side, route in routes.items()},
            "parameters": {
                "default_route": DOCUMENT,
                "allow_empty_key": True,
                "route_mappings": {},
            },
        },
    )
    write_modules(folder, [(ROUTER, "")])
    prompts = joined_prompts(source.spec.prompts, source.documents.spec.prompts)
    values = prompts.to_json() | {"similarity_fn_name": "cosine"}
    storage.write_json(folder / PROMPTS_FILE, values)
    return {f"{next(iter(route))}/{WEIGHT_FILE}": "fp32" for route in routes.values()}


def check_pair(queries: Source, documents: Source) -> None:
    """Refuse models whose embeddings cannot be compared.

    Raises:
        InputError: They have other widths, or lexical features that the other one lacks; or the
            prompt of documents has no name.
    """
    widths = [model.spec.embedding_width for model in (queries, documents)]
    if widths[0] != widths[1]:
        raise InputError(
            "--documents",
            f"{documents.folder} gives {widths[1]} numbers, and {queries.folder} gives {widths[0]}",
            f"Train the model of queries with encoder.output_width={widths[1]}",
        )
    if queries.spec.lsa:
        raise InputError(
            "--model",
            f"{queries.folder} has lexical (LSA) features, which no document has",
            "Train it with encoder.lsa.dimensions=0",
        )
    prompts = documents.spec.prompts
    if prompts.before(prompts.sides[1]) != prompts.before(DOCUMENT):
        raise InputError(
            "--documents",
            f"{documents.folder} has only a default prompt, and a Router needs one for documents",
            f"Add the same text as `{DOCUMENT}` to its {PROMPTS_FILE}",
        )


def joined_prompts(queries: Prompts, documents: Prompts) -> Prompts:
    """Return the prompts of a pair: those of documents, with the other model's for queries."""
    texts, default = dict(documents.texts), documents.default
    if default == QUERY:
        texts[PLAIN], default = documents.before(), PLAIN
    # A model without prompts of sides has its default prompt before queries.
    asking = queries.before(queries.sides[0])
    texts |= {QUERY: asking, DOCUMENT: documents.before(DOCUMENT)}
    return Prompts(tuple(texts.items()), default)


def _write_route(folder: Path, side: str, model: Source) -> dict[str, str]:
    """Write the modules of a model; return the class of each by its name."""
    aside = folder / side
    aside.mkdir()
    modules = write_encoder_modules(aside, model.spec, model.weights, model.folder, hidden=True)
    named = {}
    for number, (kind, path) in enumerate(modules):
        # As the library names them.
        name = f"{side}_{number}_{kind}"
        (aside / path).rename(folder / name)
        if not any((folder / name).iterdir()):
            # Many stores keep no empty folder.
            storage.write_json(folder / name / CONFIG_FILE, {})
        named[name] = kind
    aside.rmdir()
    return named


def open_file(folder: Path, file: str) -> Embed:
    """See :class:`ExportFormat`."""
    # It takes seconds, and only the comparison needs it.
    from sentence_transformers import SentenceTransformer

    model, side = SentenceTransformer(str(folder), device="cpu"), _side(file)

    def embed(texts: Sequence[str]) -> np.ndarray:
        found: np.ndarray = model.encode(
            list(texts), task=side, prompt="", batch_size=len(texts), show_progress_bar=False
        )
        return found

    return embed


def model_of(source: Source, file: str) -> Source:
    """See :class:`ExportFormat`."""
    assert source.documents is not None, "a pair"
    return source if _side(file) == QUERY else source.documents


def _side(file: str) -> str:
    """Return the route of a file of weights."""
    return file.partition("_")[0]


def usage(source: Source, files: Mapping[str, Any]) -> Iterator[str]:
    """See :class:`ExportFormat`."""
    yield from ("### sentence-transformers", "", "It needs release 5 or later.", "")
    yield from fenced(
        "python",
        "from sentence_transformers import SentenceTransformer",
        "",
        'model = SentenceTransformer(".")',
        'queries = model.encode_query(["when does the museum open"])',
        'documents = model.encode_document(["The museum opens at nine."])',
    )
    yield from ("### Sentence Pipelines", "")
    yield "The table may be of this folder, or of the model of documents itself."
    yield ""
    yield from fenced(
        "bash",
        "sentence-pipelines search --set embedding.output=vectors --set embedding.model=. \\",
        '    --query "when does the museum open"',
    )


ROUTER_FORMAT = ExportFormat(
    libraries=("sentence_transformers", "torch", "transformers"),
    write=write,
    open=open_file,
    usage=usage,
    int8="a Router holds the weights in fp32",
    is_pair=True,
    model_of=model_of,
)
