"""Python that uses a model: each piece runs as it stands, on a machine that has the folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipelines.model_card.facts import CardFacts
from pipelines.model_card.markdown import literal
from pipelines.tokens.start import DOCUMENT, QUERY, Prompts

HERE = "."
_QUERIES = ("How do I reset my password?", "Which documents do I need?")
_DOCUMENTS = (
    "Choose a new password on the page of your account.",
    "Bring your passport and a letter of invitation.",
    "The museum opens at nine.",
)


def usage(facts: CardFacts) -> str:
    """Loads the model and compares texts, with the prompts that it was trained with."""
    told = _queries_and_documents() if any(facts.spec.prompts.sides) else _sentences(facts)
    return "\n".join([*_loading(facts), "", *told, *_other_prompts(facts.spec.prompts)])


def _queries_and_documents() -> list[str]:
    return [
        *_texts("queries", _QUERIES),
        *_texts("sentences", _DOCUMENTS),
        "# These put the prompts before the texts.",
        "query_embeddings = model.encode_query(queries)",
        "document_embeddings = model.encode_document(sentences)",
        "print(model.similarity(query_embeddings, document_embeddings))",
    ]


def _sentences(facts: CardFacts) -> list[str]:
    return [
        *_texts("sentences", (*_QUERIES[:1], *_DOCUMENTS)),
        "embeddings = model.encode(sentences)",
        "print(embeddings.shape)",
        f"# ({1 + len(_DOCUMENTS)}, {facts.spec.embedding_width})",
        "print(model.similarity(embeddings, embeddings))",
    ]


def _other_prompts(prompts: Prompts) -> Iterator[str]:
    """A line for each prompt that is not for queries and documents alone."""
    for name, text in prompts.texts:
        if text and name not in (QUERY, DOCUMENT):
            note = "  # as without prompt_name" if name == prompts.default else ""
            yield f"model.encode(sentences, prompt_name={literal(name)}){note}"


def usage_at(facts: CardFacts, width: int) -> str:
    """Loads the model so that its embeddings are cut to a width."""
    lines = [
        *_loading(facts, f", truncate_dim={width}"),
        f"embeddings = model.encode([{literal(_DOCUMENTS[0])}], normalize_embeddings=True)",
        "print(embeddings.shape)",
        f"# (1, {width})",
    ]
    return "\n".join(lines)


def _loading(facts: CardFacts, options: str = "") -> list[str]:
    place = HERE if facts.place is None else str(facts.place)
    return [
        "from sentence_transformers import SentenceTransformer",
        "",
        f"model = SentenceTransformer({literal(place)}{options})",
    ]


def _texts(name: str, texts: Sequence[str]) -> list[str]:
    return [f"{name} = [", *(f"    {literal(text)}," for text in texts), "]"]
