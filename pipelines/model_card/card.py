"""The card as a whole, and its file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from pipelines.evaluation.sets import Role
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.model_card.facts import CardFacts, read_facts
from pipelines.model_card.front_matter import front_matter
from pipelines.model_card.markdown import LONGEST, code, fenced, literal, plain, table
from pipelines.model_card.training_sections import training_sections
from pipelines.model_card.usage import usage, usage_at
from pipelines.models.architecture import architecture_of
from pipelines.models.digest import CARD_FILE
from pipelines.models.folder import read_encoder
from pipelines.models.lsa import LIMIT
from pipelines.models.spec import UNLIMITED, EncoderSpec
from pipelines.models.weights import weight_shapes
from pipelines.report.comparison import Comparison
from pipelines.report.tables import points, signed_points, told_interval
from pipelines.runs.checkpoint import checkpoint_steps, load_spec
from pipelines.settings import Config

SIMILARITY = "cosine"
NOT_MEASURED = (
    "Nothing was measured of this model. `sentence-pipelines evaluate` does so, and writes the "
    "figures here."
)
HOW_TO_READ = (
    "Before: the model that training began with. After: this model. Figures are times 100, but "
    "for alignment and uniformity."
)
INTERVALS = (
    "The intervals are by paired bootstrap over the queries (or pairs), or groups of them: where 0 "
    "lies in one, the difference may be chance. Of each set the first figure is tested, and called "
    "better or worse."
)
CITATION = """\
@inproceedings{reimers-2019-sentence-bert,
    title = "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks",
    author = "Reimers, Nils and Gurevych, Iryna",
    booktitle = "Proceedings of EMNLP 2019",
    year = "2019",
    publisher = "Association for Computational Linguistics",
    url = "https://arxiv.org/abs/1908.10084",
}"""


def model_card(facts: CardFacts) -> str:
    """The card of a model: front matter for the hub, and Markdown for people.

    Its parts are those of the cards that sentence-transformers writes.
    """
    body = "\n".join(_body(facts))
    return f"---\n{front_matter(facts).to_yaml()}\n---\n\n{body}"


def write_card(run: RunFolder, config: Config, spec: EncoderSpec | None = None) -> Location:
    """Writes the card of a run's model again, from what the run's folder holds now.

    The model stays what it is: its digest leaves the card out, see
    :mod:`pipelines.models.digest`.

    Args:
        run: Its model is there.
        config: The settings, for the section `card`.
        spec: The shape of the model; read where it is not given.

    Returns:
        The file.
    """
    path = run.model / CARD_FILE
    facts = read_facts(run, config, spec or _spec_of(run, config))
    storage.write_text(path, model_card(facts))
    return path


def _spec_of(run: RunFolder, config: Config) -> EncoderSpec:
    """The shape of a run's model, without its weights where a checkpoint tells it."""
    steps = checkpoint_steps(run.path)
    encoder = config.encoder
    # What the corpus decides is in the model alone.
    if not steps or encoder.lsa.dimensions or encoder.max_length == "corpus":
        return read_encoder(run.model)[0]
    return load_spec(run.path, max(steps))


def _body(facts: CardFacts) -> Iterator[str]:
    yield from (f"# {plain(facts.name)}", "")
    if facts.verdict:
        yield from (f"**{plain(facts.verdict, LONGEST)}**", "")
    yield from (_introduction(facts), "")
    yield from _description(facts)
    yield from _usage(facts)
    yield from _evaluation(facts)
    yield from _limits(facts)
    yield from training_sections(facts)
    yield from ("## Citation", "", *fenced("bibtex", CITATION), "")


def _introduction(facts: CardFacts) -> str:
    begun = f"finetuned from {_base(facts)}" if facts.base else "trained from random weights"
    return (
        f"This is a [sentence-transformers](https://www.SBERT.net) model {begun} with "
        f"sentence-pipelines. It maps texts to vectors of {facts.spec.embedding_width} numbers, "
        "for semantic search, paraphrases, clustering and classification."
    )


def _base(facts: CardFacts) -> str:
    base = facts.base
    assert base is not None, "not of random weights"
    if base.hub_name is None:
        return plain(base.shown)
    at = f" at revision {plain(base.revision)}" if base.revision else ""
    return f"[{plain(base.hub_name)}](https://huggingface.co/{base.hub_name}){at}"


def _description(facts: CardFacts) -> Iterator[str]:
    spec, card = facts.spec, facts.config.card
    numbers = sum(prod(shape) for shape in weight_shapes(spec).values())
    yield from ("## Model", "")
    yield "- **Model type:** Sentence Transformer"
    yield f"- **Base model:** {_base(facts) if facts.base else 'none, its weights were random'}"
    yield f"- **Architecture:** {plain(_modules(spec))}"
    yield f"- **Parameters:** {numbers:,}"
    yield f"- **Maximum sequence length:** {_length(spec)}"
    yield f"- **Output dimensions:** {spec.embedding_width}{_widths_told(facts)}"
    yield f"- **Similarity function:** {SIMILARITY}"
    yield "- **Modality:** text"
    yield f"- **Languages:** {', '.join(facts.languages) or 'not stated'}"
    yield from (f"- **Licence:** {_license(card.license, card.license_link)}", "")
    named = [(name, text) for name, text in spec.prompts.texts if text]
    if named:
        yield from ("It expects these prompts before texts:", "")
        for name, text in named:
            note = ", unless another is named" if name == spec.prompts.default else ""
            yield f"- {code(literal(name))}: {code(literal(text))}{note}"
        yield ""


def _modules(spec: EncoderSpec) -> str:
    """The modules, in their order."""
    described = f"{spec.kind} {architecture_of(spec).described(spec)}"
    pooling = getattr(spec, "pooling", None)
    parts = [described, *([] if pooling is None else [f"{pooling} pooling"])]
    parts += [f"a dense layer of {layer.width}" for layer in spec.dense]
    parts += [f"{spec.lsa} numbers of its words beside it"] if spec.lsa else []
    return ", then ".join([*parts, *(["scaling to length 1"] if spec.normalise else [])])


def _installing(spec: EncoderSpec) -> str:
    # Earlier releases cannot put words beside an encoder.
    wanted = "'sentence-transformers>=5.4'" if spec.lsa else "sentence-transformers"
    return f"pip install -U {wanted}"


def _length(spec: EncoderSpec) -> str:
    return "all tokens" if spec.max_length == UNLIMITED else f"{spec.max_length:,} tokens"


def _widths(facts: CardFacts) -> Sequence[int]:
    """To which embeddings may be cut."""
    widths = {*facts.config.common_widths()} - {facts.spec.embedding_width}
    return sorted(widths, reverse=True)


def _widths_told(facts: CardFacts) -> str:
    widths = ", ".join(map(str, _widths(facts)))
    return f", trained to be cut to {widths} (`truncate_dim`)" if widths else ""


def _license(given: str | None, link: str | None) -> str:
    told = "not stated" if given is None else plain(given, LONGEST)
    return told if link is None else f"{told} ({plain(link)})"


def _usage(facts: CardFacts) -> Iterator[str]:
    yield from ("## Usage", "", _needed(facts), "")
    yield from (*fenced("bash", _installing(facts.spec)), "")
    yield from (*fenced("python", usage(facts)), "")
    yield from (_place_told(facts), "")
    widths = _widths(facts)
    if widths:
        told = f"Its embeddings may be cut to {', '.join(map(str, widths))} numbers:"
        yield from (told, "", *fenced("python", usage_at(facts, widths[0])), "")


def _needed(facts: CardFacts) -> str:
    release = " of release 5 or later" if any(facts.spec.prompts.sides) else ""
    return f"With sentence-transformers{release}:"


def _place_told(facts: CardFacts) -> str:
    if facts.place is None:
        return "This runs in a copy of this folder; elsewhere, name the copy in place of the dot."
    return "If the folder is elsewhere by now, name that place, or the model's name on the hub."


def _evaluation(facts: CardFacts) -> Iterator[str]:
    yield from ("## Evaluation", "")
    if not facts.comparisons:
        yield from (NOT_MEASURED, "")
        return
    heads = ("measured on", "", "metric", "before", "after", "difference", "95 % interval")
    yield from table(heads, map(_figures_row, facts.comparisons), right=4)
    yield ""
    yield from (HOW_TO_READ, "")
    if any(line.interval is not None for line in facts.comparisons):
        yield from (INTERVALS, "")


def _figures_row(line: Comparison) -> tuple[str, ...]:
    name = line.metric if line.better != "lower" else f"{line.metric} (lower is better)"
    figures = points(line.before), points(line.after), signed_points(line.difference)
    names = plain(line.evaluation), plain(line.basis), plain(name)
    return (*names, *figures, told_interval(line))


def _limits(facts: CardFacts) -> Iterator[str]:
    yield from ("## Limits", "")
    for limit in _limits_told(facts):
        yield f"- {limit}"
    yield ""


def _limits_told(facts: CardFacts) -> Iterator[str]:
    spec = facts.spec
    if spec.max_length == UNLIMITED:
        yield "It reads texts of any length; a vector is the mean of all their words."
    else:
        yield f"Of a text it reads {_length(spec)}; what stands behind them has no effect."
    trained = facts.tokens.get("max_length")
    if trained is not None and trained < spec.max_length:
        yield (
            f"It was trained on the first {trained:,} tokens of texts; on longer ones it is as "
            "good as the sets above have shown, where they hold such."
        )
    if facts.languages:
        yield f"Its training texts are in: {', '.join(facts.languages)}."
    else:
        yield "Nobody has said which languages its training texts are in."
    if spec.lsa:
        yield LIMIT
    if any(spec.prompts.sides):
        yield (
            "It was trained with its prompts, which `encode_query` and `encode_document` put "
            "before texts; without them it is worse than the figures say."
        )
    if any(line.role == Role.HELD_OUT for line in facts.comparisons):
        yield (
            "Held-out pairs are of the same kind as those that it was trained on. What people "
            "ask may be answered better or worse than the figures on them say."
        )
    yield (
        "Nothing is known of it on tasks, domains and languages that it was not measured on, nor "
        "of prejudices that it has from its base model or its texts."
    )
