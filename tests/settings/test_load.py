"""Settings: what is accepted, and how each wrong one is refused."""

import re
from typing import get_args

import pytest

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.settings.base import RENAMED, Choice, IsPath
from pipelines.settings.fields import description_of, fields
from pipelines.settings.load import dump, load, parse
from pipelines.settings.resuming import recorded_value


def test_the_default_is_valid_and_survives_a_file(tmp_path):
    (tmp_path / "a.yaml").write_text(dump(Config()))
    assert load(tmp_path / "a.yaml") == load() == Config()


def test_every_setting_says_what_it_is():
    assert [field.key for field in fields() if not field.description] == []


def test_overrides_win_over_the_file(tmp_path):
    (tmp_path / "a.yaml").write_text("training: {workers: 3, granules_per_step: 6}\n")
    loaded = load(tmp_path / "a.yaml", ["training.workers=2", "training.learning_rate=5e-4"])
    assert (loaded.training.workers, loaded.training.learning_rate) == (2, 5e-4)


def load_text(folder, text, *overrides):
    (folder / "job.yaml").write_text(text)
    return load(folder / "job.yaml", overrides)


def test_spark_keys_flat_and_nested(tmp_path):
    tree = "spark.master: local[2]\nspark:\n  executor: {memory: 2g}\n  ui.enabled: true\n"
    found = load_text(tmp_path, tree).spark.conf
    assert found == {"master": "local[2]", "executor.memory": "2g", "ui.enabled": "true"}


def test_mappings_by_names_with_dots_survive_a_file_and_take_overrides(tmp_path):
    text = (
        "promotion:\n  metrics: [retrieval.ndcg@10, sts.spearman]\n  minimum: {sts.spearman: 60}\n"
    )
    (tmp_path / "a.yaml").write_text(text)
    given = ["promotion.minimum.retrieval.ndcg@10=40", "promotion.tolerance={sts.spearman: 0.5}"]
    loaded = load(tmp_path / "a.yaml", given)
    assert loaded.promotion.minimum == {"sts.spearman": 60, "retrieval.ndcg@10": 40}
    assert loaded.promotion.tolerance == {"sts.spearman": 0.5}
    (tmp_path / "b.yaml").write_text(dump(loaded))
    assert load(tmp_path / "b.yaml") == loaded


def test_a_list_may_do_without_its_brackets(tmp_path):
    given = ["corpus.inputs=a.csv, *.csv", "corpus.format=csv", "corpus.score_range=0,5"]
    corpus = load(None, given).corpus
    assert (corpus.inputs, corpus.score_range) == (("a.csv", "*.csv"), (0.0, 5.0))
    quoted = load(None, ["corpus.inputs=['a,b.csv']", "corpus.format=csv"]).corpus
    assert quoted.inputs == ("a,b.csv",)
    assert load(None, ["corpus.languages="]).corpus.languages == ()
    # In a file a comma may be part of a name.
    (tmp_path / "a.yaml").write_text("corpus: {inputs: a.csv, format: csv}")
    with pytest.raises(
        InputError, match=r"^corpus\.inputs: `a\.csv` is no list\. Write \[a\.csv\]\.$"
    ):
        load(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.worker=3", r"^training\.worker: there is no such setting\. Did you mean train"),
        ("nothing.at.all=1", r"^nothing: there is no such setting"),
        ("training.workers=two", r"^training\.workers: `two` does not fit"),
        ("training.workers=0", r"^training\.workers: `0` does not fit\. Set it to at least 1\.$"),
        (
            "corpus.format=xml",
            r"^corpus\.format: there is no format `xml`\. Choose one .*, parquet",
        ),
        (
            "training.workers=3",
            r"^training\.granules_per_step: 3 workers cannot share 2 .*multiple of 3",
        ),
        ("encoder.heads=3", r"^encoder\.heads: 3 does not divide"),
        ("encoder.kind=static", r"^encoder\.kind: .*Set encoder\.start to random"),
        ("objective.name=simcse", r"^training\.dropout: .*Set it to 0\.1"),
        ("corpus.format=csv", r"^corpus\.inputs: it is empty"),
        ("corpus.pairs=group", r"^corpus\.group_column: "),
        ("corpus.inputs={a: b}", r"^corpus\.inputs: `.*` does not fit\. Write a list, such as"),
        ("corpus.languages=[english]", r"^corpus\.languages: `english` is no ISO 639 code"),
        ("corpus.sentences=true", r"^corpus\.sentences: `pairs: summary` does not use it"),
        ("corpus.pairs=single", r"^objective\.name: single texts"),
        ("corpus.min_characters=9999", r"^corpus\.min_characters: "),
        ("promotion.metrics=[ndcg@10]", r"^promotion\.metrics: `ndcg@10` names no evaluation"),
        ("promotion.metrics=[]", r"^promotion\.metrics: `\[\]` does not fit\. List at least 1\.$"),
        ("corpus.evaluation_share=2", r"^corpus\.evaluation_share: .* Set it to less than 1\.$"),
        ('evaluation.query_group=""', r"^evaluation\.query_group: .* Write 1 or more char"),
        (
            "promotion={metrics: [retrieval.ndcg@10], minimum: {a.b: 1}}",
            r"^promotion\.minimum: `a\.b` is not one of promotion\.met",
        ),
        (
            "promotion.tolerance.retrieval.ndcg@10=-1",
            r"^promotion\.tolerance\.retrieval\.ndcg@10: `-1`",
        ),
        ("promotion.tolerance=0.5", r"^promotion\.tolerance: `0\.5` does not fit"),
        ("novalue", r"^--set: `novalue` is not KEY=VALUE"),
        ("corpus.inputs=[", r"^corpus\.inputs: `\[` is not a YAML value"),
        ("training.workers=2 # a", r"^training\.workers: `2 # a` does not fit"),
        ("training.workers=true", r"^training\.workers: `true` is no number"),
        ("training.start_share=.inf", r"^training\.start_share: `\.inf` does not fit"),
        ("training=3", r"^training: "),
        (
            "card.start_name=../folder",
            r"^card\.start_name: `\.\./folder` is no name on the hub\. Wri",
        ),
        ("card.datasets=[a/b, a b]", r"^card\.datasets: `a b` is no name on the hub\. Write OWN"),
        ("card.languages=[en, English]", r"^card\.languages: `English` is no ISO 639 code\. Wr"),
    ],
)
def test_a_wrong_setting_is_one_line_with_its_key(override, message):
    with pytest.raises(InputError, match=message) as caught:
        load(None, [override])
    assert "\n" not in str(caught.value)


def test_what_the_hub_takes():
    names = ["card.start_name=bert-base-uncased", "card.datasets=[BeIR/scifact, squad]"]
    card = load(None, [*names, "card.languages=[en, deu, multilingual, code]"]).card
    assert card.datasets == ("BeIR/scifact", "squad")
    assert len(card.languages) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no file"), ("a: [", "not readable YAML"), ("- 1\n", "holds no mapping")],
)
def test_a_wrong_file_is_named(tmp_path, content, message):
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_some_choices_make_others_free():
    # Asynchronous workers need not share a step evenly, and one process has all of it.
    training = load(None, ["training.mode=async", "training.workers=3"]).training
    assert (training.workers, training.granules_per_step) == (3, 2)
    training = load(None, ["training.engine=local", "training.granules_per_step=1"]).training
    assert (training.workers, training.processes) == (2, 1)
    # A static encoder has no heads.
    given = ["encoder.start=random", "encoder.kind=static", "encoder.hidden=250"]
    assert load(None, given).encoder.hidden == 250


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Config().training.workers = 3


ADDRESSES = ("hdfs:/models", "dbfs:/x", "dbfs://x/y", "file://other/x")
STORED = ("s3a://models/encoder", "S3://models/x", "hdfs://host:8020/x", "memory://x/y")
LOCAL = {"storage.cache_folder"}
# Settings of texts whose name or description speaks of files and folders, and that are no path.
NO_PATHS = {
    "publish.address",
    "corpus.exclude_columns",
    "embedding.merge_into",
    "tracking.mlflow_run_name",
    "training.feed",
    "questions.model",
    "questions.prompts",
}


def kinds_of(field):
    """The types and marks that an annotation is made of."""
    yield from field.metadata
    pending = [field.annotation]
    while pending:
        kind = pending.pop()
        yield kind
        yield from getattr(kind, "__metadata__", ())
        pending += [*get_args(kind)]


def settings_of_texts():
    """Every setting that takes any text, what is said of it, and whether it is marked as a path."""
    for section, section_field in Config.model_fields.items():
        for name, field in getattr(section_field.annotation, "model_fields", {}).items():
            kinds = list(kinds_of(field))
            if str in kinds and not any(isinstance(kind, Choice) for kind in field.metadata):
                is_path = any(isinstance(kind, IsPath) for kind in kinds)
                description = description_of(section_field.annotation, name)
                yield f"{section}.{name}", description, is_path


PATHS = [key for key, _, is_path in settings_of_texts() if is_path]


def test_every_setting_that_speaks_of_files_is_a_path():
    told = re.compile(r"\b(files?|folders?|paths?|checkpoint folder|directory)\b", re.IGNORECASE)
    for key, description, is_path in settings_of_texts():
        speaks = told.search(f"{key.replace('_', ' ')} {description}") is not None
        assert is_path == (speaks and key not in NO_PATHS), key
    assert len(PATHS) == 31


@pytest.mark.parametrize("key", PATHS)
def test_a_path_is_on_a_file_system_or_in_a_store(key):
    is_list = isinstance(Config().model_dump()[key.split(".")[0]][key.split(".")[1]], tuple)
    given = "[{}]" if is_list else "{}"
    trackers = ["tracking.trackers=[tensorboard]"] if "tensorboard" in key else []
    for address in ADDRESSES:
        told = rf"^{key}: `{address}` is on .+, not on a file system\. Mount it and give the path"
        with pytest.raises(InputError, match=told):
            load(None, [*trackers, f"{key}={given.format(address)}"])
    for address in STORED:
        if key not in LOCAL:
            section, name = key.split(".")
            loaded = getattr(
                getattr(load(None, [*trackers, f"{key}={given.format(address)}"]), section), name
            )
            assert loaded == ((address,) if is_list else address)
    for empty in ("''", '"a\\0b"'):
        with pytest.raises(InputError, match=rf"^{key}: .* names no file or folder"):
            load(None, [*trackers, f"{key}={given.format(empty)}"])
    for path in ("file:/data/x", "file:///data/x", "FILE://localhost/data/x", "/data/x"):
        loaded = load(None, [*trackers, f"{key}={given.format(path)}"])
        section, name = key.split(".")
        assert getattr(getattr(loaded, section), name) == (("/data/x",) if is_list else "/data/x")
    for path in ("a:/x", "a:b", "./~x", "corpus/x.csv"):
        load(None, [*trackers, f"{key}={given.format(path)}"])
    with pytest.raises(InputError, match=rf"^{key}: .* is the home of an unknown user"):
        load(None, [*trackers, f"{key}={given.format('~nobody-of-this-name/x')}"])
    for path in ("${DATA}/x", "$DATA/x", "a/$x", "s3://${BUCKET}/x"):
        with pytest.raises(InputError, match=rf"^{key}: `.*` names a variable, and settings"):
            load(None, [*trackers, f"{key}={path}"])


@pytest.mark.parametrize("section", ["corpus", "embedding", "mining"])
def test_tables_have_addresses_or_paths(monkeypatch, section):
    monkeypatch.setenv("HOME", "/home/somebody")
    for given, inputs in (("s3a://lake/pairs",) * 2, ("~/pairs", "/home/somebody/pairs")):
        loaded = load(None, [f"{section}.inputs=[{given}]", f"{section}.format=delta"])
        assert getattr(loaded, section).inputs == (inputs,)
    told = rf"^{section}\.inputs: .* is (in an unknown kind of store|on lake)"
    with pytest.raises(InputError, match=told):
        load(None, [f"{section}.inputs=[lake://pairs]", f"{section}.format=parquet"])
    with pytest.raises(InputError, match=rf"^{section}\.inputs: .* names a variable"):
        load(None, [f"{section}.inputs=$DATA", f"{section}.format=delta"])


WRONG_ADDRESSES = {
    "lake://x/y": r"is in an unknown kind of store\. Choose one of s3, ",
    "s3:///x": r"names no bucket\. Write s3://BUCKET/FOLDER",
    "s3://me:sesame@bucket/x": r"holds credentials\. Leave them to the environment",
    "gs://bucket/../x": r"goes up a folder\. Write the address without",
}


@pytest.mark.parametrize("address", WRONG_ADDRESSES)
def test_an_address_that_names_no_place_is_refused(address):
    with pytest.raises(InputError, match=rf"^run\.folder: .* {WRONG_ADDRESSES[address]}"):
        load(None, [f"run.folder={address}"])


def test_a_home_is_meant_by_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load(None, ["run.folder=~/runs/1"]).run.folder == "/home/somebody/runs/1"


def test_a_section_that_is_empty_in_the_file_takes_overrides(tmp_path):
    """As when all that is in it is commented out."""
    (tmp_path / "job.yaml").write_text("spark:\n  # master: yarn\ntraining:\ntracking:\n")
    found = load(tmp_path / "job.yaml", ["spark.ui.enabled=true", "training.seed=7"])
    assert found.spark.conf == {"ui.enabled": "true"}
    assert found.training.seed == 7
    assert found.tracking == parse({}).tracking
    (tmp_path / "job.yaml").write_text("spark: yarn\n")
    with pytest.raises(InputError, match=r"^spark: `yarn` is not a section"):
        load(tmp_path / "job.yaml", ["spark.ui.enabled=true"])


TEXTS = ("runs/try #3", "2026-11-26", "1e3", "007", "no", "true", "True", "1.0", "a: b", "[x]")
TEXTS += ("{a: b}", "&a", "*b", "!!x", "@vol", "%d", "x,y", " a ", "- a", "a$1", "'a' #b", "1_000")


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_of_the_command_line_counts_to_its_last_character(text):
    given = [f"run.folder={text}", f"spark.app.name={text}", f"encoder.prompts.query={text}"]
    loaded = load(None, given)
    assert loaded.run.folder == loaded.spark.conf["app.name"] == text
    assert loaded.encoder.prompts["query"] == text


def test_quotes_around_a_text_are_left_out():
    assert load(None, ["run.folder='2026'"]).run.folder == "2026"
    assert load(None, ['spark.app.name=""']).spark.conf == {"app.name": ""}
    given = load(None, ["corpus.inputs='a,b #1.csv', c", "corpus.format=csv"])
    assert given.corpus.inputs == ("a,b #1.csv", "c")


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("a.csv,'b,c.csv'", ("a.csv", "b,c.csv")),
        ("'24 data.csv", ("'24 data.csv",)),
        ('"C:\\data",b', ('"C:\\data"', "b")),
        ('"a" b', ('"a" b',)),
        ("'", ("'",)),
    ],
)
def test_quotes_that_enclose_no_item_are_a_part_of_it(value, inputs):
    assert load(None, [f"corpus.inputs={value}"]).corpus.inputs == inputs


@pytest.mark.parametrize("sign", ["\t", " "])
def test_a_blank_of_the_command_line_is_a_text(sign):
    assert load(None, [f"corpus.csv_separator={sign}"]).corpus.csv_separator == sign
    assert load(None, ["corpus.csv_separator="]).corpus.csv_separator is None


def test_the_spark_conf_of_a_file_takes_truth_values_in_all_spellings(tmp_path):
    text = "spark: {a: yes, b: Off, c: TRUE, d: 'yes', e: y}\nstages: {train: {spark.x: No}}\n"
    loaded = load_text(tmp_path, text)
    assert loaded.spark.conf == {"a": "true", "b": "false", "c": "true", "d": "yes", "e": "y"}
    assert loaded.stages.train == {"spark.x": "false"}
    with pytest.raises(InputError, match=r"^lanes\.seed: `Yes` is no number\. Write a number"):
        load_text(tmp_path, "lanes: {seed: Yes}\n")


def test_a_list_is_no_text_and_one_without_items_is_refused_with_its_form(tmp_path):
    with pytest.raises(InputError, match=r"^training\.engine: `\['deepspeed'\]` does not fit"):
        load_text(tmp_path, "training: {engine: [deepspeed]}\n")
    with pytest.raises(InputError, match=r"^corpus\.inputs: null .* is no list\. Write \[VALUE\]"):
        load_text(tmp_path, "corpus:\n  inputs:\n")


@pytest.mark.parametrize("value", ["[a #1.csv, b]", "[a] # b", "['a', b] #"])
def test_a_list_of_the_command_line_has_no_comments(value):
    with pytest.raises(InputError, match=r"^corpus\.inputs: .* is not a YAML value\. Quote it"):
        load(None, [f"corpus.inputs={value}"])


def test_a_file_may_leave_quotes_out_where_a_text_is_asked_for(tmp_path):
    text = """
corpus: {inputs: [2026, no, 2026-11-26], format: csv, languages: [no]}
run: {folder: 007}
encoder: {prompts: {query: 1.0, no: on}}
spark: {app.name: 1e3, ui.enabled: true}
"""
    loaded = load_text(tmp_path, text)
    assert loaded.corpus.inputs == ("2026", "no", "2026-11-26")
    assert (loaded.corpus.languages, loaded.run.folder) == (("no",), "007")
    assert loaded.encoder.prompts == {"query": "1.0", "no": "on"}
    assert loaded.spark.conf == {"app.name": "1e3", "ui.enabled": "true"}
    assert load_text(tmp_path, dump(loaded)) == loaded


@pytest.mark.parametrize("value", ["null", "~", "", "[a]", "{}"])
def test_what_is_no_text_is_refused_with_the_cure(tmp_path, value):
    for key in ("run.folder", "embedding.text_column", "spark.app"):
        with pytest.raises(InputError, match=rf"^{key}.*: .* does not fit\. .* in quotes"):
            load_text(tmp_path, f"{key}: {value}\n")


NUMBERS = ("lanes.seed", "training.learning_rate", "encoder.max_length", "spark.wait_seconds")


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize(
    "number", ["010", "-010", "1:30", "1_000", "0x1F", "0b11", "0o17", "'010'"]
)
def test_a_number_has_one_notation(tmp_path, key, number):
    told = rf"^{key}: `.*` is no decimal number\. Write it as"
    with pytest.raises(InputError, match=told):
        load(None, [f"{key}={number}"])
    with pytest.raises(InputError, match=told):
        load_text(tmp_path, f"{key}: {number}\n")


@pytest.mark.parametrize(
    "key",
    [
        "objective.temperature",
        "training.learning_rate",
        "training.clip_norm",
        "corpus.near_duplicates",
    ],
)
@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan", "inf", "nan", "1e999"])
def test_a_number_is_finite(tmp_path, key, number):
    told = rf"^{key}: `.*` does not fit\. Write a finite number"
    with pytest.raises(InputError, match=told):
        load_text(tmp_path, f"{key}: {number}\n")
    section, _, name = key.partition(".")
    with pytest.raises(InputError, match="finite"):
        parse({section: {name: float(number.lstrip("-."))}})


def test_a_whole_number_has_64_bits():
    with pytest.raises(InputError, match=r"^lanes\.seed: the number is 2\^63 or more"):
        load(None, [f"lanes.seed={1 << 63}"])
    with pytest.raises(InputError, match=r"^lanes\.seed: "):
        parse({"lanes": {"seed": 10**3000}})


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        ("run: {keep: 1}\ncorpus:\n  inputs: [a]\nrun: {folder: b}\n", "run", (1, 4)),
        ("encoder:\n  lora:\n    rank: 1\n    alpha: 2\n    rank: 3\n", "rank", (3, 5)),
        ("corpus:\n  sources:\n  - {name: a, name: b}\n", "name", (3, 3)),
        ("run.folder: a\nrun:\n  folder: b\n", "run.folder", (1, 3)),
        ("spark.master: a\nspark:\n  spark.master: b\n", "spark.master", (1, 3)),
        ("run: {<<: {keep: 1}, <<: {keep: 2}}\n", "<<", (1, 1)),
        ("run:\n  'keep': 1\n  keep: 1\n", "keep", (2, 3)),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_both_lines(tmp_path, text, key, lines):
    told = rf"^--config: .*job\.yaml sets `{key}` in line {lines[0]} and again in line {lines[1]}\."
    with pytest.raises(InputError, match=told):
        load_text(tmp_path, text)


@pytest.mark.parametrize("value", ["{folder: a, folder: b}", "{folder: a, 'folder': b}"])
def test_a_value_sets_a_key_once(value):
    with pytest.raises(InputError, match=r"^--set: `run\.folder` stands twice in a value"):
        load(None, [f"run={value}"])


def test_a_section_of_the_command_line_is_merged_with_that_of_the_file(tmp_path):
    text = "run: {folder: mine, keep: 3}\nencoder: {layers: 2, lora: {rank: 2}}\n"
    text += "corpus: {inputs: [a], format: csv}\npromotion: {minimum: {retrieval.ndcg@10: 1}}\n"
    given = ["run={overwrite: true}", "encoder={lora: {alpha: 3}}", "corpus={inputs: [b]}"]
    given += ["promotion.minimum={retrieval.mrr@10: 2}", "run={}"]
    given += ["promotion.metrics=retrieval.ndcg@10,retrieval.mrr@10"]
    loaded = load_text(tmp_path, text, *given)
    assert (loaded.run.folder, loaded.run.keep, loaded.run.overwrite) == ("mine", 3, True)
    assert (loaded.encoder.layers, loaded.encoder.lora.rank, loaded.encoder.lora.alpha) == (2, 2, 3)
    assert (loaded.corpus.inputs, loaded.corpus.format) == (("b",), "csv")
    assert loaded.promotion.minimum == {"retrieval.ndcg@10": 1, "retrieval.mrr@10": 2}


def test_a_store_of_mlflow_and_the_spark_conf_know_no_home_or_variable(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    mlflow = ["tracking.trackers=mlflow"]
    for given, uri in (
        ("~/mlruns", "/home/somebody/mlruns"),
        ("http://a:p$w@host/~x", "http://a:p$w@host/~x"),
        ("databricks://one", "databricks://one"),
    ):
        assert load(None, [*mlflow, f"tracking.mlflow_uri={given}"]).tracking.mlflow_uri == uri
    for given in ("$DATA/mlruns", "sqlite:///${DATA}/mlflow.db"):
        with pytest.raises(InputError, match=r"^tracking\.mlflow_uri: .* names a variable"):
            load(None, [*mlflow, f"tracking.mlflow_uri={given}"])
    with pytest.raises(InputError, match=r"^spark\.local\.dir: Spark does not replace `~` in `~/"):
        load(None, ["spark.local.dir=~/spark"])


def test_a_setting_is_read_under_its_name_of_before(monkeypatch, tmp_path, caplog):
    monkeypatch.setitem(RENAMED, "training.processes_asked", "training.workers")
    monkeypatch.setitem(RENAMED, "encoder.adapter", "encoder.lora")
    text = "training: {processes_asked: 1}\nencoder: {adapter: {rank: 2}}\n"
    config = load_text(tmp_path, text, "encoder.adapter.targets=query,key")
    assert (config.training.workers, config.encoder.lora.rank) == (1, 2)
    assert config.encoder.lora.targets == ("query", "key")
    assert "training.processes_asked is called training.workers now" in caplog.messages
    with pytest.raises(InputError, match=r"sets `training\.workers` in line 2 and again in line 3"):
        load_text(tmp_path, "training:\n  processes_asked: 4\n  workers: 2\n")
    assert parse({"training": {"processes_asked": 1}}) == load(None, ["training.workers=1"])
    assert recorded_value({"encoder.adapter": 3}, "encoder.lora", 0) == 3


def test_a_framework_that_is_still_to_be_chosen_is_not_asked_for_by_a_dump(tmp_path):
    config = load(None, ["objective.name=tsdae", "corpus.pairs=single"])
    path = tmp_path / "config.yaml"
    path.write_text(dump(config))
    again = load(str(path))
    assert again == config
    assert again.training.chooses_framework
    path.write_text(dump(load(None, ["training.framework=torch"])))
    assert not load(str(path)).training.chooses_framework


def test_fields_of_a_request_are_taken_as_they_are(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("questions: {extra_body: {top_k: 20, template: {thinking: no}}}\n")
    config = load(str(file))
    given = {"top_k": 20, "template": {"thinking": False}}
    assert config.questions.extra_body == given
    file.write_text(dump(config))
    assert load(str(file)) == config
    changed = load(str(file), ["questions.extra_body={template: {a.b: 1}}"])
    assert changed.questions.extra_body == {"template": {"a.b": 1}}
    changed = load(str(file), ["questions.extra_body.top_k=30"])
    assert changed.questions.extra_body == given | {"top_k": 30}
