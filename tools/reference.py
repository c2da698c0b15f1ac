"""Writes the pages of ``docs/reference`` from the code: ``python tools/reference.py``."""

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
REFERENCE = DOCS / "reference"
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
        "Write settings in one YAML file, and override them with `--set KEY=VALUE`. A command "
        "refuses a wrong key, type or range before Spark starts.\n",
        _VALUES,
        "| key | type | default | what it is |",
        "|---|---|---|---|",
    ]
    for key, kind, default, description in fields():
        cells = (f"`{key}`", kind, f"`{default}`" if default else "", description)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for title, keys in (("must stay as they were", FIXED), ("may change", RECORDED)):
        names = ", ".join(f"`{key}`" for key in keys)
        lines.append(f"\nWith `training.resume`, these settings {title}: {names}.")
    return "\n".join(lines) + "\n"


def engines_page() -> str:
    """The tables of engines and of their modes, as Markdown."""
    engines = [load_engine(name) for name in ENGINES]
    lines = [
        NOTICE + "# Engines\n",
        "`training.engine` names the engine, and `training.mode` how it updates the weights. All "
        "engines read the same lanes (shards), and write the same checkpoints and model folder. "
        "[Engines](../concepts/engines.md) explains them, and [modes](../concepts/modes.md) "
        "compares synchronous with asynchronous training.\n",
        *_table(
            (
                "training.engine",
                "training.mode",
                "training.framework",
                "training.feed",
                "training.sharding",
                "[layouts](../concepts/large-encoders.md)",
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
        "\n## The choice of `auto`\n",
        "By default (`training.engine: auto`), training takes the first fitting engine of this "
        "table. An engine fits if its libraries are installed, it supports the settings, and the "
        "Spark conf keeps its rules. On a cluster with encryption, it must also encrypt its own "
        "connections. The log names the choice and the other fitting engines. A resumed run keeps "
        "its engine. [Strategies](../measurements/strategies.md) has the machine and the command "
        "of these rates in fp32.\n",
        *_table(
            ("", "engine", "framework", "examples/s of two workers"),
            (
                (str(place), f"`{one.engine}`", one.framework, one.why)
                for place, one in enumerate(CANDIDATES, 1)
            ),
        ),
        "\n## Modes\n",
        *_table(
            ("engine, mode", "guarantee", "choose it if", "needs"),
            (
                (f"`{found.name}` {name}", mode.guarantee, mode.choose_when, mode.needs)
                for engine in ENGINES
                for found in variants(engine)
                for name, mode in found.modes.items()
            ),
        ),
        "\n## Rules for the Spark conf\n",
        "A job refuses other values before a worker starts, and names the key. "
        "`sentence-pipelines engines NAME --config FILE` prints a whole conf for spark-submit, "
        "executors and cores included. `--defaults` prints it for `spark-defaults.conf`.\n",
        *_table(("key", "must be", "engines", "because the engine"), _conf_rules(engines)),
        "\n## Unsupported combinations\n",
        "A command refuses these before Spark starts, and the error names an alternative.\n",
        *_table(("feature", "setting", "not with"), _unsupported()),
    ]
    return "\n".join(lines) + "\n"


def _conf_rules(engines: Sequence[Engine]) -> Iterator[Sequence[str]]:
    """Each rule with the engines that have it."""
    having: dict[ConfRule, list[str]] = {}
    for engine in engines:
        for rule in all_rules(engine.name):
            having.setdefault(rule, []).append(f"`{engine.name}`")
    for rule in sorted(having, key=lambda rule: rule.key):
        yield f"`{rule.key}`", _must_be(rule), ", ".join(having[rule]), rule.why


def _unsupported() -> Iterator[Sequence[str]]:
    """Each feature with the trainings that lack it, and why."""
    lacking: dict[str, dict[str, list[str]]] = {}
    keys = {}
    for limit in sorted(LIMITS, key=lambda limit: limit.feature.name.lower()):
        keys[limit.feature.name] = limit.feature.key
        problem = re.sub(r"`?\{.+?\}`?", "…", limit.problem)
        lacking.setdefault(limit.feature.name, {}).setdefault(problem, []).append(limit.scope.name)
    for name, scopes in lacking.items():
        told = (f"{', '.join(found)}: {problem}." for problem, found in scopes.items())
        yield name, f"`{keys[name]}`", " ".join(told)


def losses_page() -> str:
    """The table of losses, as Markdown."""
    losses = [LOSSES.load(name) for name in LOSSES]
    common = set(ObjectiveSettings.model_fields)
    lines = [
        NOTICE + "# Losses\n",
        "`objective.name` names the loss. [Objectives](../concepts/objectives.md) helps you "
        "choose one. All losses on embeddings share these keys of the section: "
        f"{_keys(sorted(common - {'name'}))}.\n",
        *_table(
            ("objective.name", "minimises", "needs", "own keys", "frameworks"),
            (
                (
                    f"`{loss.name}`",
                    loss.summary,
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
        "A start checkpoint is a folder of sentence-transformers or of transformers. Its "
        "`modules.json` and the `model_type` in its `config.json` name the architecture. The "
        "trained model is a folder for sentence-transformers.\n",
        *_table(
            ("architecture", "models"),
            ((f"`{one.spec.kind}`", one.models) for one in found),
        ),
        "\n## By framework\n",
        "PyTorch and TensorFlow train and embed. dllib trains on the engine `bigdl`, and OpenVINO "
        "embeds. All give the same embeddings. With `training.sharding`, PyTorch gathers one "
        "layer at a time or the whole encoder.\n",
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
        "A cell lists the values of `training.framework` for an engine and an architecture.\n",
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
        "\n## Pooling and dense layers\n",
        "Every architecture but `static` ends with one of these poolings. Dense layers of "
        "sentence-transformers (with Tanh or without activation) may follow, and so may scaling "
        "to length 1. Training updates the dense layers too.\n",
        *_table(
            ("pooling", "embedding of a text"),
            ((f"`{name}`", told) for name, told in _POOLINGS.items()),
        ),
        "\n## Files beside the weights\n",
        "All commands read the files of sentence-transformers beside the weights. A command "
        "honours or refuses each key that changes vectors, and names the file and the key. It "
        "refuses unknown keys too.\n",
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
                    "`truncation_side`, `split_special_tokens`, `never_split`, a class with other "
                    "tokens than `tokenizer.json`",
                ),
                (
                    "`added_tokens.json`, `added_tokens_decoder`, `special_tokens_map.json`, "
                    "`vocab.txt`",
                    "tokens of `tokenizer.json`, and added ones with the next ids",
                    "tokens with another id, tokens without a vector",
                ),
                (
                    "`config_sentence_transformers.json`",
                    "`prompts`, `default_prompt_name`",
                    "`truncate_dim`, `model_type`",
                ),
                ("`modules.json`", "`type`, `path`", "`kwargs`, modules of other code"),
            ),
        ),
        "\n- `similarity_fn_name` changes no vector. `search`, `mine` and evaluation always "
        "compare by cosine, and warn of another function.\n"
        "- A trained model has the tokenizer of its start and needs none of these keys.\n"
        "- Reading a checkpoint compares `config.json` with the names and shapes of the weights. "
        "It refuses a tokenizer with more tokens than word embeddings.\n"
        "- Multilingual MiniLM models such as `paraphrase-multilingual-MiniLM-L12-v2` have XLM-R's "
        "tokens, but their files name BERT's tokenizer. The package takes their "
        "`tokenizer.json`, and logs it. Transformers 5 maps most words of such a folder to the "
        "unknown token. The trained model names a class that works in every release.\n"
        "- sentence-transformers 6 saves a decoder with a chat template as `message` in "
        "`modality_config`. The package refuses such a folder.\n"
        "- A text may contain the padding token (`<pad>`) itself. RoBERTa, XLM-R, CamemBERT and "
        "MPNet count no position for it, in PyTorch, TensorFlow and OpenVINO. In training, the "
        "engines `mesh` and `bigdl` (with dllib) count one.\n",
        "\n## Models of transformers\n",
        "The architecture `hf` covers all other models of transformers. The library computes them, "
        "so install the extra `transformers`. Code in a checkpoint's folder never runs. Dropout "
        "depends on `training.seed` and the granule (a fixed micro-batch), so any number of "
        "workers gives the same losses. A decoder without `modules.json` needs "
        "`encoder.pooling: lasttoken`, unless its training used another pooling.\n",
    ]
    return "\n".join(lines)


def recipes_page() -> str:
    """What each recipe sets, as Markdown."""
    lines = [
        NOTICE + "# Recipes\n",
        "A recipe is a set of settings for one kind of corpus. Name it with `recipe: NAME` in the "
        "YAML file or with `--set recipe=NAME`. Your own settings take precedence, key by key. If "
        "you name another loss, the whole objective of the recipe is off. The run's `config.yaml` "
        "records the settings in use.\n",
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
        "`sentence-pipelines benchmark NAME` (or `spark-submit jobs/benchmark.py NAME`) prints a "
        "table, and a line of JSON at its end. All benchmarks take `--data`, `--config` and "
        "`--set`. They measure CPU time where possible. The pages under Measurements, such as "
        "[steps](../measurements/steps.md), have their results.\n",
        *_table(
            ("benchmark", "what it does", "own options", "takes about", "bounds"),
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
        "`make bench` compares benchmark figures with bounds. It runs "
        "`sentence-pipelines benchmark bounds`, which starts one process per benchmark and "
        "continues after a failure. Each broken bound prints a line with the figure, the bound, "
        "and the command that repeats it. The exit code is then 1. `--cases` selects runs, and "
        "`--output FOLDER` keeps their output.\n",
        "`bench/pipelines_bench/bounds/bounds.yaml` has the bounds; `--data FILE` takes another "
        "file of this form. Only figures that vary little between machines have bounds: ratios "
        "within one run, counts, and peak memory. A yardstick, a fixed piece of plain Python, "
        "runs before and after each benchmark. Other CPU times are ratios to it. A missing figure "
        "breaks its bound unless the bound is `optional`.\n",
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
        "\nRuns share lanes of the embedded default corpus. After a change that costs more on "
        "purpose, raise the bound and record the new measurement in `seen`.\n",
    ]
    return "\n".join(lines)


_OWN_BOUNDS = {"soak": "its own", "bounds": "of all others"}
_FORMS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "bigdl": "dllib", "openvino": "OpenVINO"}
_POOLINGS: dict[Pooling, str] = {
    "mean": "The mean of its hidden states.",
    "cls": "The hidden state of its first token.",
    "lasttoken": "The hidden state of its last token, for decoders.",
    "weightedmean": "The mean of its hidden states, weighted by position from 1 on.",
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
        storage.write_text(REFERENCE / name, page())


if __name__ == "__main__":
    main()
