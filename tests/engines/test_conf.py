"""What engines ask of the Spark conf, and how it is printed for spark-submit."""

from __future__ import annotations

import shlex
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.catalog import ENGINES
from pipelines.cli import main
from pipelines.engines.automatic import with_engine
from pipelines.engines.base import ConfRule, check_conf, engine_of, load_engine
from pipelines.engines.overview import all_rules, conf_lines, submit_conf, variants
from pipelines.errors import EngineUnavailable
from pipelines.settings import Config, TrainingSettings
from pipelines.settings.redaction import SPARK_PATTERN

KEYS = st.from_regex(r"spark(\.[a-zA-Z]{1,8}){1,3}", fullmatch=True)
VALUES = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=20)


def config(name: str, framework: str, **training) -> Config:
    return Config(training=TrainingSettings(engine=name, framework=framework, **training))


@pytest.mark.parametrize("name", ENGINES)
def test_what_is_printed_is_what_the_engine_accepts(name):
    for framework in load_engine(name).frameworks:
        found = load_engine(name, framework)
        asked = config(name, framework, workers=3, threads=2, granules_per_step=3)
        conf = submit_conf(found, asked)
        check_conf(conf, name, found.rules)
        if found.needs_spark:
            assert int(conf["spark.cores.max"]) == 2 * found.executors(asked)
            assert conf["spark.task.cpus"] == conf["spark.executor.cores"] == "2"


@pytest.mark.parametrize(
    ("name", "rule"), [(name, rule) for name in ENGINES for rule in all_rules(name)]
)
def test_the_contrary_of_a_rule_is_refused_with_its_key(name, rule):
    wrong = "2" if rule.most is not None else {"true": "false", "false": "true"}[rule.value]
    with pytest.raises(EngineUnavailable, match=f"^{rule.key}: engine {name} ") as refused:
        check_conf({rule.key: wrong}, name, [rule])
    assert refused.value.remedy == rule.remedy
    check_conf({}, name, [rule])
    check_conf({rule.key: rule.value}, name, [rule])


@pytest.mark.parametrize("amount", ["0.5", "1.0", "one", "-1", "2"])
def test_an_amount_that_no_library_reads_is_refused(amount):
    (rule,) = (rule for rule in all_rules("torch") if rule.most is not None)
    with pytest.raises(EngineUnavailable, match=rf"^{rule.key}: .* one GPU per worker\. Set 1\.$"):
        check_conf({rule.key: amount}, "torch", [rule])


def test_a_user_may_take_the_consequences():
    rule = ConfRule(key="spark.a", value="false", why="leaks", unless="spark.b")
    assert not rule.is_kept({"spark.a": "true"})
    assert rule.is_kept({"spark.a": "true", "spark.b": "true"})
    assert rule.remedy == "Set false, or spark.b true"


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_a_shell_reads_the_lines_as_they_are_meant(conf):
    words = shlex.split("spark-submit \\\n" + "\n".join(conf_lines(conf, as_file=False)) + "\njob")
    pairs = dict(word.split("=", 1) for word in words[2:-1:2])
    assert pairs == conf


def test_a_file_of_properties_keeps_backslashes():
    assert list(conf_lines({"spark.a": r"a\b"}, as_file=True)) == [r"spark.a  a\\b"]


def test_the_users_own_conf_wins():
    asked = Config(spark={"executor.cores": "4", "master": "local[2]"})
    conf = submit_conf(load_engine("tensorflowonspark"), asked)
    assert conf["spark.executor.cores"] == "4"
    assert "spark.master" not in conf


def test_bigdl_has_its_jars_sent_along():
    pytest.importorskip("bigdl", reason="BigDL is not installed")
    asked = {framework: config("bigdl", framework) for framework in ("bigdl", "torch")}
    found = {key: submit_conf(engine_of(job), job) for key, job in asked.items()}
    assert "bigdl-dllib" in found["bigdl"]["spark.jars"]
    assert "spark.jars" not in found["torch"]


@pytest.mark.parametrize(("columns", "lines_of_a_row"), [(80, 2), (110, 1), (200, 1)])
def test_the_table_has_a_line_for_each_engine_that_may_wrap_once(
    capsys, monkeypatch, columns, lines_of_a_row
):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["engines"]) == 0
    title, *lines, empty, hint = capsys.readouterr().out.splitlines()
    assert title.split() == ["engine", "modes", "frameworks", "best", "for"]
    assert (empty, "sentence-pipelines engines NAME" in hint) == ("", True)
    assert max(map(len, [*lines, hint])) <= min(columns, 110)
    starts = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    assert [lines[number].split()[0] for number in starts] == [*ENGINES]
    assert max(end - start for start, end in pairwise([*starts, len(lines)])) <= lines_of_a_row
    words = {word for line in lines for word in line.split()}
    for engine in map(load_engine, ENGINES):
        assert {*engine.modes, *engine.frameworks} <= {word.rstrip(",") for word in words}
        assert {*engine.best_for.split()} <= words


@pytest.mark.parametrize("name", ENGINES)
def test_the_best_use_of_an_engine_is_a_short_phrase(name):
    for framework in load_engine(name).frameworks:
        assert 0 < len(load_engine(name, framework).best_for) <= 40


@pytest.mark.parametrize("name", ENGINES)
def test_the_details_of_an_engine_have_its_modes_and_rules(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["engines", name]) == 0
    details = capsys.readouterr().out
    assert max(map(len, details.splitlines())) <= 80
    # Whole words, so that a key can be copied.
    words = {word.rstrip(".,:;)").lstrip("(") for word in details.split()}
    assert {name, *(rule.key for rule in all_rules(name))} <= words
    text = " ".join(details.split())
    for engine in variants(name):
        for mode in engine.modes.values():
            first, *_ = mode.guarantee.replace("`", "").split(". ")
            assert first in text
    assert "choose when" in text


def test_the_command_prints_the_lines(capsys, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("training: {framework: torch, workers: 2, threads: 3}\n")
    assert main(["engines", "torch", "--config", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "--conf spark.cores.max=6 \\\n" in printed
    assert f"--conf 'spark.redaction.regex={SPARK_PATTERN}' \\\n" in printed
    assert main(["engines", "torch", "--config", str(file), "--defaults"]) == 0
    assert "spark.cores.max                  6\n" in capsys.readouterr().out
    assert main(["engines", "elephas", "--config", str(file)]) == 2
    assert capsys.readouterr().err.startswith("error: training.framework: ")


def test_lines_for_the_defaults_need_no_file(capsys):
    assert main(["engines", "--defaults"]) == 0
    default = with_engine(Config())
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert dict(lines) == submit_conf(engine_of(default), default)
    assert main(["engines", "torch", "--defaults"]) == 2
    assert capsys.readouterr().err.startswith("error: training.framework: ")
