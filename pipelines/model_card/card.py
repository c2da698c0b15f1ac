"""The model card: the facts to know before using a model.

A training writes it with the model, and an evaluation writes it again. Its facts come from the run
folder and from the section `card` of the settings; unknown ones are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from pipelines.evaluation.sets import Role
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.model_card.front_matter import (
    WATTS_PER_CPU,
    CardFacts,
    front_matter,
    read_facts,
    watt_hours,
)
from pipelines.models.architecture import architecture_of
from pipelines.models.folder import LITTLE_KNOWN, read_encoder
from pipelines.models.identity import CARD_FILE
from pipelines.models.lsa import LIMIT
from pipelines.models.spec import UNLIMITED, EncoderSpec
from pipelines.models.weights import weight_shapes
from pipelines.report.comparison import MAX_CHARACTERS, Comparison, shown
from pipelines.report.page_parts import duration
from pipelines.report.verdict import points, signed_points, told_interval
from pipelines.runs.checkpoint import checkpoint_steps, load_spec
from pipelines.runs.model_choice import told_choice
from pipelines.runs.opening import LIBRARIES, MISSING
from pipelines.settings import Config, ObjectiveSettings
from pipelines.settings.corpus import SourceForm, SourceSettings
from pipelines.settings.resuming import FREE, differing_settings
from pipelines.tokens.start import DOCUMENT, QUERY, WITHOUT_LAYERS, Prompts
from pipelines.tokens.summary import told_cuts

LONGEST = 5000
"""The most characters of a text by people for the card."""

# Markup of Markdown, or of HTML within it: an underscore but for one within a word, and the signs
# of a heading, a list or a rule at the beginning of a line.
_MARKUP = re.compile(r"[\\`*\[\]<>~$#|&]|(?<![^\W_])_|_(?![^\W_])|^[-+=]")
_NUMBERED = re.compile(r"^(\d+)([.)])(?!\S)")
# A backslash before a bar would end a cell if another one stood before it.
_AS_ENTITIES = {"|": "&#124;", "<": "&lt;", ">": "&gt;", "&": "&amp;"}
_BACKTICKS = re.compile(r"`+")


def plain(text: object, most: int = MAX_CHARACTERS) -> str:
    """Return a text for a line or a cell: one line, at most so many characters, no markup."""
    escaped = _MARKUP.sub(_escaped, shown(str(text), most))
    return _NUMBERED.sub(r"\1\\\2", escaped)


def _escaped(found: re.Match[str]) -> str:
    return _AS_ENTITIES.get(found[0], f"\\{found[0]}")


def literal(text: str) -> str:
    """Return a text as Python source; line ends and invisible characters are escapes."""
    quoted = f'"{text}"'
    return quoted if text.isprintable() and not set('"\\') & set(text) else repr(text)


def code(text: str) -> str:
    """Return a one-line text as inline code."""
    marks = "`" * (1 + max((len(run) for run in _BACKTICKS.findall(text)), default=0))
    space = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return f"{marks}{space}{text}{space}{marks}"


def fenced(language: str, source: str) -> list[str]:
    """Return a block of code; no line of the source may begin with three backticks."""
    return [f"```{language}", *source.split("\n"), "```"]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: int = 0) -> list[str]:
    """Return the lines of a table of Markdown cells; the last ``right`` columns align right."""
    left = len(heads) - right
    marks = [":--" if place < left else "--:" for place in range(len(heads))]
    return [f"| {' | '.join(cells)} |" for cells in (heads, marks, *rows)]


HERE = "."
"""The model's folder in the Python of a card; another path would be one of this machine."""
_QUERIES = ("How do I reset my password?", "Which documents do I need?")
_DOCUMENTS = (
    "Choose a new password on the page of your account.",
    "Bring your passport and a letter of invitation.",
    "The museum opens at nine.",
)


def usage(facts: CardFacts) -> str:
    """Show how to load the model and compare texts, with the prompts of its training."""
    example = _queries_and_documents() if any(facts.spec.prompts.sides) else _sentences(facts)
    return "\n".join([*_loading(), "", *example, *_further_prompts(facts.spec.prompts)])


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


def _further_prompts(prompts: Prompts) -> Iterator[str]:
    """Show each prompt other than those for queries and documents."""
    for name, text in prompts.texts:
        if text and name not in (QUERY, DOCUMENT):
            note = "  # the default" if name == prompts.default else ""
            yield f"model.encode(sentences, prompt_name={literal(name)}){note}"


def usage_at(width: int) -> str:
    """Show how to load the model with embeddings truncated to a width."""
    lines = [
        *_loading(f", truncate_dim={width}"),
        f"embeddings = model.encode([{literal(_DOCUMENTS[0])}], normalize_embeddings=True)",
        "print(embeddings.shape)",
        f"# (1, {width})",
    ]
    return "\n".join(lines)


def _loading(options: str = "") -> list[str]:
    return [
        "from sentence_transformers import SentenceTransformer",
        "",
        f"model = SentenceTransformer({literal(HERE)}{options})",
    ]


def _texts(name: str, texts: Sequence[str]) -> list[str]:
    return [f"{name} = [", *(f"    {literal(text)}," for text in texts), "]"]


SECTIONS = (
    "corpus",
    "tokens",
    "teacher",
    "lanes",
    "encoder",
    "objective",
    "training",
    "evaluation",
)
"""Settings with an effect on the model, or on its figures."""
SHOWN_ELSEWHERE = ("corpus.sources", "corpus.inputs", "objective.name")
HUB_DATASETS = "https://huggingface.co/datasets"
_MACHINE = ("platform", "cores")
_VERSIONS = ("sentence-pipelines", "python", *LIBRARIES)


def training_sections(facts: CardFacts) -> Iterator[str]:
    """Describe data, objective, settings, machines and time."""
    yield from ("## Training", "")
    if facts.model:
        early = ", after an early end (`training.patience`)" if "early_end" in facts.model else ""
        yield from (f"The model is {plain(told_choice(facts.model))}{early}.", "")
    yield from _data(facts)
    yield from _objective(facts)
    yield from _settings(facts)
    yield from _time(facts)
    yield from _versions(facts)


def _data(facts: CardFacts) -> Iterator[str]:
    config, card = facts.config, facts.config.card
    yield from ("### Data", "")
    if card.data_description is not None:
        yield from (plain(card.data_description, LONGEST), "")
    if card.datasets:
        links = (f"[{plain(name)}]({HUB_DATASETS}/{name})" for name in card.datasets)
        yield f"- **Datasets:** {', '.join(links)}"
    for source in config.corpus.sources or (config.corpus,):
        yield f"- **{_title(source)}:** {_texts_of(source)}"
    if "examples" in facts.tokens:
        yield f"- **Examples for training:** {facts.tokens['examples']:,}"
    if "max_length" in facts.tokens:
        yield f"- **Read in training:** {told_cuts(facts.tokens)}"
    licence = "not stated" if card.data_license is None else plain(card.data_license, LONGEST)
    yield from (f"- **Licence of the texts:** {licence}", "")
    if facts.funnel:
        yield from ("The preparation kept and dropped:", "")
        yield from table(("counted", "", "number"), map(_funnel_row, facts.funnel), right=1)
        yield ""


def _title(source: SourceForm) -> str:
    return f"Source {plain(source.name)}" if isinstance(source, SourceSettings) else "Texts"


def _texts_of(source: SourceForm) -> str:
    inputs = ", ".join(source.inputs) or "the installed Python packages"
    return plain(f"{source.format} of {inputs}; examples by the rule {source.pairs}")


def _funnel_row(line: Mapping[str, Any]) -> tuple[str, str, str]:
    name = line.get("stage", line.get("reason", ""))
    what = name if line["kind"] == "in" else f"{line['kind']}: {name}"
    return plain(line["level"]), plain(what), f"{line['rows']:,}"


def _objective(facts: CardFacts) -> Iterator[str]:
    config = facts.config
    yield from ("### Objective", "")
    for source in config.corpus.sources:
        yield f"- {_title(source)}: {_loss(source.objective or config.objective)}"
    if not config.corpus.sources:
        yield f"- {_loss(config.objective)}"
    yield ""


def _loss(objective: ObjectiveSettings) -> str:
    """Describe a loss with all its keys, since each loss has its own defaults."""
    keys = objective.model_dump(mode="json", exclude={"name"})
    described = (
        f"{code(key)} {_value(value)}"
        for key, value in keys.items()
        if value is not None and value != []
    )
    return "; ".join((f"**{plain(objective.name)}**", *described))


def _settings(facts: CardFacts) -> Iterator[str]:
    hidden = {*SHOWN_ELSEWHERE, *FREE}
    settings = {
        key: value
        for key, value in differing_settings(facts.config, SECTIONS).items()
        if key not in hidden
    }
    yield from ("### Settings that differ from their defaults", "")
    if not settings:
        yield from ("None.", "")
        return
    yield from table(("key", "value"), ((code(key), _value(settings[key])) for key in settings))
    yield ""


def _value(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return plain(", ".join(value)) or "none"
    return plain(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _time(facts: CardFacts) -> Iterator[str]:
    training, figures = facts.config.training, facts.training
    if not figures:
        return
    processes = training.processes
    yield from ("### Hardware and time", "")
    yield (
        f"- **Engine:** {plain(training.engine)} ({plain(training.mode)}, "
        f"{plain(training.framework)}) with {processes} worker{'s' if processes > 1 else ''}"
    )
    if "precision" in figures:
        yield f"- **Precision:** {plain(figures['precision'])}"
    if machine := [facts.environment[key] for key in _MACHINE if key in facts.environment]:
        counts = (f"{plain(count)} cores" for count in machine[1:])
        cores = " and ".join((plain(machine[0]), *counts))
        yield f"- **Machine of the driver:** {cores}"
    yield f"- **Steps:** {figures['steps']:,}, with {figures['examples']:,} examples in all"
    yield f"- **Training time:** {duration(figures['seconds'])}"
    if "cpu_seconds" in figures:
        yield from _energy(figures["cpu_seconds"])
    yield ""


def _energy(cpu_seconds: float) -> Iterator[str]:
    yield f"- **CPU time of the workers' steps:** {duration(cpu_seconds)}"
    yield (
        f"- **Energy of the CPUs, an estimate:** {watt_hours(cpu_seconds):.3g} Wh = CPU time x "
        f"{WATTS_PER_CPU} W for a busy logical CPU ([Cloud Carbon Footprint]"
        "(https://www.cloudcarbonfootprint.org/docs/methodology)). It leaves out GPUs, memory, "
        "network, cooling, the driver, the preparation and the evaluation."
    )


def _versions(facts: CardFacts) -> Iterator[str]:
    versions = {name: facts.environment.get(name, MISSING) for name in _VERSIONS}
    known = {name: version for name, version in versions.items() if version != MISSING}
    if known:
        yield from ("### Versions", "")
        yield ", ".join(code(shown(f"{name} {version}")) for name, version in known.items())
        yield ""


SIMILARITY = "cosine"
NOT_MEASURED = (
    "This model has no evaluation yet. Run `sentence-pipelines evaluate` to measure it and write "
    "the figures here."
)
HOW_TO_READ = (
    "Before: the start of the training. After: this model. Figures are times 100, except alignment "
    "and uniformity."
)
INTERVALS = (
    "The intervals are by paired bootstrap over the queries (or pairs), or groups of them: if one "
    "includes 0, the difference may be chance. The first figure of each set is tested: better, "
    "worse or not significant."
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
    """Return a card: front matter for the hub, and Markdown as sentence-transformers' cards."""
    body = "\n".join(_body(facts))
    return f"---\n{front_matter(facts).to_yaml()}\n---\n\n{body}"


def write_card(run: RunFolder, config: Config, spec: EncoderSpec | None = None) -> Location:
    """Write the card of a run's model again, from the present run folder; return its path.

    The model's digest leaves the card out, see :mod:`pipelines.models.folder`, and so stays the
    same. ``spec`` is the model's; by default it is read.
    """
    path = run.model / CARD_FILE
    facts = read_facts(run, config, spec or _spec_of(run, config))
    storage.write_text(path, model_card(facts))
    return path


def _spec_of(run: RunFolder, config: Config) -> EncoderSpec:
    """Read the spec of a run's model: from a checkpoint, if possible, without its weights."""
    steps = checkpoint_steps(run.path)
    encoder = config.encoder
    # A checkpoint lacks the parts of the spec that the corpus decides.
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
    yield from ("## Limits", "", *(f"- {limit}" for limit in _limits(facts)), "")
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
    spec = facts.spec
    numbers = sum(prod(shape) for shape in weight_shapes(spec).values())
    yield from ("## Model", "")
    yield "- **Model type:** Sentence Transformer"
    yield f"- **Base model:** {_base(facts) if facts.base else 'none (random weights)'}"
    yield f"- **Architecture:** {plain(_modules(spec))}"
    yield f"- **Parameters:** {numbers:,}"
    yield f"- **Maximum sequence length:** {_length(spec)}"
    widths = ", ".join(map(str, _widths(facts)))
    cut = f", truncatable to {widths} (`truncate_dim`)" if widths else ""
    yield f"- **Output dimensions:** {spec.embedding_width}{cut}"
    yield f"- **Similarity function:** {SIMILARITY}"
    yield "- **Modality:** text"
    yield f"- **Languages:** {', '.join(facts.languages) or 'not stated'}"
    yield f"- **Licence:** {_licence(facts)}"
    if facts.digest is not None:
        yield f"- **Digest:** {code(facts.digest)} (`model_digest` of tables and promotions)"
    yield ""
    named = [(name, text) for name, text in spec.prompts.texts if text]
    if named:
        yield from ("It expects these prompts before texts:", "")
        for name, text in named:
            note = " (the default)" if name == spec.prompts.default else ""
            yield f"- {code(literal(name))}: {code(literal(text))}{note}"
        yield ""


def _licence(facts: CardFacts) -> str:
    known = facts.licence
    if known.license is None:
        return "not stated"
    named = known.license_name or known.license
    link = "" if known.license_link is None else f" ({plain(known.license_link)})"
    of_base = ", that of the base model" if facts.config.card.license is None else ""
    return f"{plain(named, LONGEST)}{link}{of_base}"


def readers(spec: EncoderSpec) -> tuple[str, ...]:
    """Return the libraries and servers that compute a model's embeddings."""
    libraries = "what loads it by that library: LangChain, LlamaIndex, Haystack"
    ours = ("sentence-pipelines", "ONNX Runtime and fastembed, after `sentence-pipelines export`")
    if spec.lsa:
        return "sentence-transformers, release 5.4 or later", libraries, *ours
    if spec.kind == WITHOUT_LAYERS:
        # LlamaIndex asks for a finite length.
        libraries = "what loads it by that library: LangChain, Haystack"
        return "sentence-transformers, release 3.2 or later", libraries, *ours
    first = ("sentence-transformers", libraries, *ours)
    pooling = getattr(spec, "pooling", None)
    if pooling in LITTLE_KNOWN:
        return first
    if spec.dense:
        return (*first, "other readers, if they know a Dense module behind the pooling")
    scaling = " and scaling to length 1" if spec.normalise else ""
    return (
        *first,
        "vLLM, Text Embeddings Inference and infinity, if they know the architecture",
        f"transformers (`AutoModel`), with {pooling or 'the same'} pooling{scaling}",
    )


def _modules(spec: EncoderSpec) -> str:
    """Describe the modules, in their order."""
    described = f"{spec.kind} {architecture_of(spec).described(spec)}"
    pooling = getattr(spec, "pooling", None)
    parts = [described, *([] if pooling is None else [f"{pooling} pooling"])]
    parts += [f"a dense layer of {layer.width}" for layer in spec.dense]
    parts += [f"{spec.lsa} lexical (LSA) features"] if spec.lsa else []
    return ", then ".join([*parts, *(["scaling to length 1"] if spec.normalise else [])])


def _length(spec: EncoderSpec) -> str:
    return "all tokens" if spec.max_length == UNLIMITED else f"{spec.max_length:,} tokens"


def _widths(facts: CardFacts) -> Sequence[int]:
    widths = {*facts.config.common_widths()} - {facts.spec.embedding_width}
    return sorted(widths, reverse=True)


def _usage(facts: CardFacts) -> Iterator[str]:
    # `encode_query` and `encode_document` came with release 5.
    release = " of release 5 or later" if any(facts.spec.prompts.sides) else ""
    # Earlier releases have no lexical features.
    wanted = "'sentence-transformers>=5.4'" if facts.spec.lsa else "sentence-transformers"
    yield from ("## Usage", "", f"With sentence-transformers{release}:", "")
    yield from (*fenced("bash", f"pip install -U {wanted}"), "")
    yield from (*fenced("python", usage(facts)), "")
    yield "Run this in a copy of this folder. Elsewhere, replace the dot by its path, or by the"
    yield "model's name on the hub."
    yield from ("", "These load it:", "", *(f"- {reader}" for reader in readers(facts.spec)), "")
    widths = _widths(facts)
    if widths:
        sentence = f"Its embeddings are truncatable to {', '.join(map(str, widths))} numbers:"
        yield from (sentence, "", *fenced("python", usage_at(widths[0])), "")


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
    spec = facts.spec
    if spec.max_length == UNLIMITED:
        yield "It reads texts of any length; a vector is the mean of all their words."
    else:
        yield f"It reads the first {_length(spec)} of a text; the rest has no effect."
    trained = facts.tokens.get("max_length")
    if trained is not None and trained < spec.max_length:
        yield (
            f"It was trained on the first {trained:,} tokens of texts. Only evaluation sets with "
            "longer texts show its quality on them."
        )
    if facts.languages:
        yield f"Its training texts are in: {', '.join(facts.languages)}."
    else:
        yield "The languages of its training texts are not stated."
    if spec.lsa:
        yield LIMIT
    if any(spec.prompts.sides):
        yield (
            "It was trained with its prompts: `encode_query` and `encode_document` put them before "
            "texts. Without them it is worse than its figures."
        )
    if any(line.role == Role.HELD_OUT for line in facts.comparisons):
        yield (
            "Held-out pairs are of the same kind as its training pairs: they are a proxy for real "
            "queries, and its quality on those may be better or worse."
        )
    yield (
        "Its quality on other tasks, domains and languages is unknown, and so are biases from its "
        "base model or its texts."
    )
