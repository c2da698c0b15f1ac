"""YAML that nobody writes is refused in little time, with one line."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InputError
from pipelines.ml import _tree
from pipelines.settings.load import load
from pipelines.settings.yaml_file import LARGEST, UnusableYamlError, parse_yaml


def bomb(levels, kind):
    """Aliases of aliases: nine times as many values a level."""
    names = "abcdefghi"
    lines = ["v0: &v0 " + ("[x, x]" if kind == "list" else "{a: x, b: x}")]
    for level in range(1, levels):
        inner = f"*v{level - 1}"
        forms = {
            "list": f"[{', '.join([inner] * 9)}]",
            "mapping": "{" + ", ".join(f"{name}: {inner}" for name in names) + "}",
            "merge": f"{{<<: [{', '.join([inner] * 9)}]}}",
        }
        lines.append(f"v{level}: &v{level} {forms[kind]}")
    return "\n".join(lines)


@pytest.mark.parametrize("kind", ["list", "mapping", "merge"])
def test_aliases_of_aliases_are_refused_before_they_are_written_out(tmp_path, kind):
    seconds = []
    for levels in (8, 32):
        path = tmp_path / "bomb.yaml"
        path.write_text("spark:\n  " + bomb(levels, kind).replace("\n", "\n  "))
        start = time.process_time()
        with pytest.raises(InputError, match=r"--config: .*its aliases stand for too many values"):
            load(path)
        seconds.append(time.process_time() - start)
    # Nine to the power of 24 times as many values.
    assert seconds[1] < 0.05 or seconds[1] < 9 * seconds[0]


def test_aliases_as_people_write_them():
    text = "a: &base {x: 1, y: [1, 2]}\nb: {<<: *base, x: 2}\nc: *base\n"
    assert parse_yaml(text) == {
        "a": {"x": 1, "y": [1, 2]},
        "b": {"x": 2, "y": [1, 2]},
        "c": {"x": 1, "y": [1, 2]},
    }
    assert parse_yaml("") is None


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "[" * 5000,
        "x: !!timestamp now",
        "x: !!bool maybe",
        "x: !!python/object:os.system {}",
        "x: *nobody",
        "\0",
    ],
)
def test_what_the_library_fails_at_is_one_line(text):
    with pytest.raises(UnusableYamlError) as error:
        parse_yaml(text)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"^run: .* is not a YAML value\. Quote it\.$"):
        load(overrides=[f"run={text}"])


@pytest.mark.parametrize("text", ["1" * 5000, "1" + ":10" * 500, "2001-99-99", "0b_", "1" * 101])
def test_what_is_a_number_to_the_library_alone_is_a_text(text):
    assert parse_yaml(f"x: {text}") == {"x": text}
    with pytest.raises(InputError, match=r"^lanes\.seed: "):
        load(overrides=[f"lanes.seed={text}"])


def test_a_file_that_is_too_long_is_not_read(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("#" * LARGEST + "\n")
    with pytest.raises(InputError, match="longer than 1 MB"):
        load(path)


def test_an_error_shows_the_beginning_of_a_long_value():
    with pytest.raises(InputError) as error:
        load(overrides=[f"lanes.count={'x' * 100_000}"])
    assert len(str(error.value)) < 500


YAML_PARTS = [
    *("a: ", "&a ", "*a", "<<: ", "[", "]", "{", "}", ", ", "\n", "  ", "- ", "1", "0b_", "'"),
    *("!!int ", "12:30", "2001-99-99", "? ", "---\n", "%YAML 9\n", "|\n", '"', "\\x", "é", "\t"),
]


@given(st.lists(st.sampled_from(YAML_PARTS), max_size=40).map("".join))
def test_any_text_is_a_value_or_refused(text):
    with contextlib.suppress(UnusableYamlError):
        parse_yaml(text)


def test_a_list_that_is_too_long_is_not_told_of_aliases(monkeypatch):
    monkeypatch.setattr("pipelines.settings.yaml_file.MAX_VALUES", 99)
    assert len(parse_yaml(f"[{'1,' * 50}]")) == 50
    with pytest.raises(UnusableYamlError, match=r"^it holds too many values$"):
        parse_yaml(f"[{'1, ' * 99}1]")


def test_settings_of_an_estimator_set_a_key_once():
    with pytest.raises(InputError, match=r"^settings: lines 1 and 3 both set `run`\."):
        _tree("run:\n  keep: 1\nrun: {}\n")
