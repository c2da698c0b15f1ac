"""Writes the pages of ``docs/`` that follow from the code: ``python tools/reference.py``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import yaml

from pipelines.catalog import ARCHITECTURES, ENGINES, LOSSES, RECIPES
from pipelines.engines.automatic import CANDIDATES
from pipelines.engines.base import ConfRule, Engine, load_engine
from pipelines.engines.overview import all_rules, variants
from pipelines.files import storage
from pipelines.losses.loss import LABELS, NEEDS
from pipelines.models.architecture import has_form_of_engine
from pipelines.models.spec import Pooling
from pipelines.settings import ObjectiveSettings
from pipelines.settings.capabilities import LIMITS
from pipelines.settings.fields import fields
from pipelines.settings.resuming import FIXED, RECORDED
from pipelines.spark.java import RELEASES
from pipelines_bench import BENCHMARKS, LONG, own_options
from pipelines_bench.bounds.entries import read_bounds
from pipelines_bench.bounds.judging import limit_in_words

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTICE = "<!-- Written by `python tools/reference.py`; edit the code instead. -->\n\n"


_VALUES = """## Values

- **Texts** need no quotes, in the file and behind `--set`: `run.folder: 2026-11-26`, `languages:
  [no, en]`. Quote what YAML takes for nothing, a list or a mapping: `'null'`, `'[a]'`.
- **`--set` takes a text to its last character**: `--set "run.folder=runs/try #3"` names that very
  folder. In the file ` #` begins a comment. Quotes around the whole text are left out.
- **Numbers are decimal and finite**: `12`, `-3`, `0.5`, `2e-5`. `010`, `1_000`, `0x1F`, `1:30`,
  `.inf` and `.nan` are refused. `true` and `false` are no numbers.
- **Lists** may do without brackets behind `--set`: `--set corpus.inputs=a.csv,b.csv`. A list of
  `--set` replaces that of the file.
- **Mappings merge.** `--set "run={overwrite: true}"` sets one key and keeps the others of the
  file, in sections of sections too. `{}` empties a mapping whose names are yours, such as
  `promotion.minimum`.
- **A key stands once.** The job refuses a file that sets a key twice, and names both lines.
- **Paths** may begin with `~`, your home. A path with `$NAME` or `${NAME}` is refused: let your
  shell replace it. Write whole paths in the section `spark`: Spark does not replace `~`.

## All settings
"""


def settings_page() -> str:
    """The reference of all settings, as Markdown."""
    lines = [
        NOTICE + "# Settings\n",
        "One YAML file, and `--set KEY=VALUE` on top. A wrong key, type or range is refused "
        "before Spark starts.\n",
        _VALUES,
        "| key | type | default | what it is |",
        "|---|---|---|---|",
    ]
    for key, kind, default, description in fields():
        cells = (f"`{key}`", kind, f"`{default}`" if default else "", description)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for title, keys in (("must stay as they were", FIXED), ("may change", RECORDED)):
        names = ", ".join(f"`{key}`" for key in keys)
        lines.append(f"\nWith `training.resume` these {title}: {names}.")
    return "\n".join(lines) + "\n"


def engines_page() -> str:
    """The tables of engines and of their modes, as Markdown."""
    engines = [load_engine(name) for name in ENGINES]
    lines = [
        NOTICE + "# Engines\n",
        "Which engine trains is one word, `training.engine`; how updates are made is another, "
        "`training.mode`. All start from the same folder, read the same lanes, write the same "
        "checkpoints and end in the same model folder.\n",
        *_table(
            (
                "training.engine",
                "training.mode",
                "training.framework",
                "training.feed",
                "training.sharding",
                "[layouts](large-encoders.md)",
                "Spark",
            ),
            (
                (
                    f"`{found.name}`",
                    ", ".join(found.modes),
                    ", ".join(found.frameworks),
                    ", ".join(found.feeds),
                    ", ".join(found.shardings),
                    ", ".join(one for one in found.options if one.endswith("_parallel")),
                    _spark(found),
                )
                for found in engines
            ),
        ),
        "\n## Which one `auto` takes\n",
        "Unless `training.engine` names one, the first is taken whose libraries are installed, "
        "that knows the settings, and whose rules the conf of Spark keeps. Where the cluster "
        "encrypts, none is taken that sends in clear text. The log names it and the others that "
        "fit. A resumed run keeps its engine. Rates are those of "
        "[strategies](strategies.md#an-example), in fp32.\n",
        *_table(
            ("", "engine", "framework", "examples/s of two workers, and when"),
            (
                (str(place), f"`{one.engine}`", one.framework, one.why)
                for place, one in enumerate(CANDIDATES, 1)
            ),
        ),
        "\n## What each mode promises\n",
        *_table(
            ("engine, mode", "what it guarantees", "when to choose it", "what it needs"),
            (
                (f"`{found.name}` {name}", mode.guarantee, mode.choose_when, mode.needs)
                for engine in ENGINES
                for found in variants(engine)
                for name, mode in found.modes.items()
            ),
        ),
        "\n## What each insists on in the Spark conf\n",
        "Refused before a worker starts, with the key. "
        "`sentence-pipelines engines NAME --config FILE` prints what spark-submit is to be given "
        "for a run: these, executors and their cores, and what more the engine asks for; with "
        "`--defaults` as lines of `spark-defaults.conf`.\n",
        *_table(
            ("engine", "key", "must be", "since the engine"),
            (
                (f"`{found.name}`", f"`{rule.key}`", _must_be(rule), rule.why)
                for found in engines
                for rule in all_rules(found.name)
            ),
        ),
        "\n## What is not possible\n",
        "Refused as soon as settings are read, or, of an engine, before Spark starts.\n",
        *_table(
            ("what", "setting", "not with", "since", "instead"),
            (
                (
                    limit.feature.name,
                    f"`{limit.feature.key}`",
                    limit.scope.name,
                    re.sub(r"`?\{.+?\}`?", "…", limit.problem),
                    limit.remedy,
                )
                for limit in sorted(LIMITS, key=lambda limit: limit.feature.name.lower())
            ),
        ),
        "\n[Synchronous or asynchronous](modes.md) says how the modes differ.\n",
    ]
    return "\n".join(lines)


def losses_page() -> str:
    """The table of losses, as Markdown."""
    losses = [LOSSES.load(name) for name in LOSSES]
    common = set(ObjectiveSettings.model_fields)
    lines = [
        NOTICE + "# Losses\n",
        "One word, `objective.name`, says what is minimised; [objectives](objectives.md) says "
        "which to take. All that compare embeddings know the common keys of the section: "
        f"{_keys(sorted(common - {'name'}))}.\n",
        *_table(
            ("objective.name", "what is minimised", "what it needs", "its keys", "frameworks"),
            (
                (
                    f"`{loss.name}`",
                    _first_line(LOSSES.module(loss.name)),
                    LABELS if loss.labels else NEEDS[loss.needs],
                    _keys(key for key in loss.settings.model_fields if key not in common),
                    ", ".join(loss.forms),
                )
                for loss in losses
            ),
        ),
    ]
    return "\n".join(lines) + "\n"


def _keys(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _first_line(module: str) -> str:
    """What a module says of itself first, with plain names for links."""
    documented = import_module(module).__doc__ or ""
    line = documented.partition("\n\n")[0].replace("\n", " ")
    return re.sub(r":mod:`\.(\w+)`", r"`\1`", line)


def architectures_page() -> str:
    """The tables of architectures by framework and by engine, as Markdown."""
    found = [ARCHITECTURES.load(name) for name in ARCHITECTURES]
    engines = [load_engine(name) for name in ENGINES]
    lines = [
        NOTICE + "# Architectures\n",
        "A start checkpoint tells which architecture it is, by its `modules.json` and the "
        "`model_type` of its `config.json`. It is a folder of sentence-transformers or a plain "
        "one of transformers, and what comes out is a folder that sentence-transformers loads.\n",
        *_table(
            ("architecture", "models that start from it"),
            ((f"`{one.spec.kind}`", one.models) for one in found),
        ),
        "\n## By framework\n",
        "PyTorch and TensorFlow train and embed, dllib trains on the engine `bigdl`, OpenVINO "
        "embeds. All of them give the same embeddings. With `training.sharding`, PyTorch gathers "
        "one layer at a time, or the whole encoder.\n",
        *_table(
            ("architecture", *_FORMS.values(), "sharded training gathers"),
            (
                (
                    f"`{one.spec.kind}`",
                    *("yes" if form in one.forms else "" for form in _FORMS),
                    "a layer" if "torch_module" in one.forms else "the encoder",
                )
                for one in found
            ),
        ),
        "\n## By engine\n",
        "The values of `training.framework` with which an engine trains an architecture.\n",
        *_table(
            ("architecture", *(f"`{engine.name}`" for engine in engines)),
            (
                (
                    f"`{one.spec.kind}`",
                    *(
                        ", ".join(
                            name
                            for name in engine.frameworks
                            if name in one.forms and has_form_of_engine(one, engine.name)
                        )
                        for engine in engines
                    ),
                )
                for one in found
            ),
        ),
        "\n## What follows a transformer\n",
        "Every architecture but `static` may be followed by one of these ways of pooling, by any "
        "number of dense layers (the Dense module of sentence-transformers, with Tanh or without "
        "activation), which are trained too, and by scaling to length 1.\n",
        *_table(
            ("pooling", "of a text"), ((f"`{name}`", told) for name, told in _POOLINGS.items())
        ),
        "\n## The files beside the weights\n",
        "sentence-transformers reads several files beside the weights. `embed`, `search`, `mine`, "
        "training, teachers and evaluation read them too. A key that changes vectors is honoured "
        "or refused, with the file and the key; so is a key that nobody here knows.\n",
        *_table(
            ("file", "honoured", "refused unless at the default"),
            (
                (
                    "`sentence_bert_config.json` and its six older names",
                    "`max_seq_length`, `do_lower_case`, `tokenizer_args`, `processor_kwargs`",
                    "`query_length`, `document_length`, `query_expansion`, `processing_kwargs`, "
                    "`modality_config`, `transformer_task`, `config_args`, `model_args` that "
                    "change the model",
                ),
                (
                    "`tokenizer_config.json`",
                    "`do_lower_case`, `strip_accents`, `tokenize_chinese_chars`, names of special "
                    "tokens, `model_max_length`",
                    "`truncation_side`, `split_special_tokens`, `never_split`, a class that makes "
                    "other tokens than `tokenizer.json`",
                ),
                (
                    "`added_tokens.json`, `added_tokens_decoder`, `special_tokens_map.json`, "
                    "`vocab.txt`",
                    "tokens of `tokenizer.json`, and added ones with the next ids",
                    "tokens that have another id or no vector",
                ),
                (
                    "`config_sentence_transformers.json`",
                    "`prompts`, `default_prompt_name`",
                    "`truncate_dim`, `model_type`",
                ),
                ("`modules.json`", "`type`, `path`", "`kwargs`, modules of other code"),
            ),
        ),
        "\n`similarity_fn_name` changes no vector. `search`, `mine` and evaluation compare by "
        "cosine whatever it says, and warn of it. A trained model has the tokenizer of its start "
        "as it was read, and needs none of these keys. `config.json` is compared with the names "
        "and shapes of the weights before anything is built of it. A tokenizer of more tokens "
        "than there are word embeddings is refused.\n\n"
        "Multilingual MiniLM models such as `paraphrase-multilingual-MiniLM-L12-v2` have the "
        "tokens of XLM-R, and their files name BERT's tokenizer. Their `tokenizer.json` is read as "
        "it is, with a line in the log. Transformers 5 makes most words unknown by such a folder; "
        "a model that is trained from one names a class that every release reads alike.\n\n"
        "A decoder that sentence-transformers 6 saved with a chat template has `message` in "
        "`modality_config`: the library puts every text into that template. Such a folder is "
        "refused.\n\n"
        "A text may spell the padding token out (`<pad>`). RoBERTa, XLM-R, CamemBERT and MPNet "
        "count no position for it, and neither do PyTorch, TensorFlow and OpenVINO here. The "
        "engines `mesh` and `bigdl` (with dllib) count one in training.\n",
        "\n## Models of transformers\n",
        "`hf` is what no other architecture recognises. The library computes it, so it is needed "
        "(the extra `transformers`), and code from a checkpoint's folder is never run. Dropout "
        "follows from `training.seed` and the granule here too, so any number of workers gives "
        "the same losses. A decoder without `modules.json` needs `encoder.pooling: lasttoken`, "
        "unless it was trained to pool otherwise.\n",
    ]
    return "\n".join(lines)


def recipes_page() -> str:
    """What each recipe sets, as Markdown."""
    lines = [
        NOTICE + "# Recipes\n",
        "`recipe: NAME` in the YAML file, or `--set recipe=NAME`, stands for settings that are "
        "meant for one another. Whatever else the file or the command line sets comes before "
        "them, key by key; where another loss is named, none of the recipe's objective is used. "
        "The run's `config.yaml` has all of them as they were used.\n",
    ]
    for name in RECIPES:
        recipe = RECIPES.load(name)
        settings = dict(recipe.settings)
        told = yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=100)
        lines += [
            f"## `{name}`\n",
            f"{recipe.purpose} {recipe.evidence}\n",
            f"```yaml\n{told}```\n",
        ]
    return "\n".join(lines)


def benchmarks_page() -> str:
    """What each benchmark measures, how long it takes, and the bounds of figures, as Markdown."""
    bounds = read_bounds()
    counts = Counter(run.benchmark for run in bounds.runs for _ in run.bounds)
    lines = [
        NOTICE + "# Benchmarks\n",
        "`sentence-pipelines benchmark NAME` (or `spark-submit jobs/benchmark.py NAME`) measures "
        "side by side, prints a table, and a line of JSON at its end; all take `--data`, "
        "`--config` and `--set`. Time is CPU time wherever that can be. "
        "[Measurements](measurements.md) has what they have found.\n",
        *_table(
            ("benchmark", "what it measures", "its own options", "takes about", "has bounds"),
            (
                (
                    f"`{name}`",
                    _first_line(module),
                    _keys(f"--{key}" for key in own_options(name)),
                    LONG.get(name, "minutes"),
                    str(counts[name]) if counts[name] else _OWN_BOUNDS.get(name, ""),
                )
                for name, module in BENCHMARKS.items()
            ),
        ),
        "\n## Bounds\n",
        "`make bench` holds the figures of the table below to their bounds, as tests hold what is "
        "right: `sentence-pipelines benchmark bounds` runs each benchmark in a process of its own, "
        "goes on after one that fails, and prints a line for each bound that is broken, with the "
        "figure, the bound, and the command that repeats it. It ends with 1 then. `--cases` names "
        "some of the runs, `--output FOLDER` keeps what they have printed.\n",
        "The bounds are in `bench/pipelines_bench/bounds/bounds.yaml`; `--data FILE` takes another "
        "file of the same form. Only figures that are much the same on every machine have bounds: "
        "a ratio of two things that were measured in one run, by their CPU time wherever that can "
        "be, a count, or memory at most. What takes CPU seconds and is compared with nothing else "
        "is told over a yardstick, a fixed piece of work in plain Python that is measured before "
        "and after it. A figure that a benchmark does not give, or cannot measure though it is not "
        "`optional`, breaks its bound.\n",
        *_table(
            ("run", "benchmark", "bound", "figure", "must be", "seen"),
            (
                (
                    f"`{run.name}`",
                    f"`{run.benchmark}`",
                    f"`{bound.name}`",
                    f"`{bound.figure}`" + (f" over `{bound.over}`" if bound.over else ""),
                    limit_in_words(bound),
                    bound.seen,
                )
                for run in bounds.runs
                for bound in run.bounds
            ),
        ),
        "\nLanes that runs share are prepared once, of the embedded default corpus. After a change "
        "that is meant to cost more, set the bound anew, and say in `seen` what it was set from.\n",
    ]
    return "\n".join(lines)


_OWN_BOUNDS = {"soak": "its own", "bounds": "those of all others"}
_FORMS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "bigdl": "dllib", "openvino": "OpenVINO"}
_POOLINGS: dict[Pooling, str] = {
    "mean": "The mean of its hidden states.",
    "cls": "The hidden state of its first token.",
    "lasttoken": "That of its last token, which in a decoder alone has seen all others.",
    "weightedmean": "The mean of its hidden states, weighted by their places from 1 on.",
}


def _spark(engine: Engine) -> str:
    """The releases of Spark that an engine runs on."""
    if not engine.needs_spark:
        return "no"
    majors = engine.spark_majors or [release.major for release in RELEASES]
    return ", ".join({3: "3.5"}.get(major, str(major)) for major in majors)


def _must_be(rule: ConfRule) -> str:
    amount = "a whole number, at most " if rule.most else ""
    return f"{amount}`{rule.value}`" + (f", or `{rule.unless}` true" if rule.unless else "")


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(titles) + " |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


PAGES = {
    "settings.md": settings_page,
    "engines.md": engines_page,
    "losses.md": losses_page,
    "architectures.md": architectures_page,
    "recipes.md": recipes_page,
    "benchmarks.md": benchmarks_page,
}


def main() -> None:
    """Writes all pages."""
    for name, page in PAGES.items():
        storage.write_text(DOCS / name, page())


if __name__ == "__main__":
    main()
