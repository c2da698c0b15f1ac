"""The page of error messages quotes what the package says, word for word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pytest
from module_graph import syntax_of
from reference import DOCS

from pipelines.errors import in_sentences
from pipelines.settings.capabilities import LIMITS

SOURCE = DOCS.parent / "pipelines"
PAGE = (DOCS / "reference" / "troubleshooting.md").read_text(encoding="utf-8")
OURS, _, _ = PAGE.partition("## What Spark says")
MESSAGES = re.findall(r"^\| `(.+?)` \|", OURS, re.MULTILINE)
FILLED = "…"
INPUT_ERRORS = ("InputError", "EngineUnavailable")
# Their second argument tells what happened to a run; the last three make or report the first two.
RUN_ERRORS = ("EngineError", "WorkerLostError", "_lost", "_error", "report_lost")
NOT_OF_A_KEY = ("PipelineError", "SupersededError", "one_line")
OF_ANY_KEY = ("NotLocalError", "refusal")
SAYING = {*INPUT_ERRORS, *RUN_ERRORS, *NOT_OF_A_KEY, *OF_ANY_KEY, "ConfRule"}


@dataclass(frozen=True)
class Said:
    """What one place of the code says; what is filled in is an ellipsis.

    Attributes:
        key: The setting; empty where a run failed.
        text: Problem and remedy, or what happened to the run.
    """

    key: str
    text: str


def text_of(node: ast.expr, known: dict[str, ast.expr]) -> str:
    """The text of an expression, as far as it is written there or in what a name stands for."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part, known) for part in node.values)
    if isinstance(node, ast.Name) and isinstance(known.get(node.id), ast.Constant | ast.JoinedStr):
        return text_of(known[node.id], {})
    return FILLED


def assigned(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """What the names stand for that are assigned once."""
    given: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in given.items() if len(values) == 1}


def said_by(node: ast.AST, known: dict[str, ast.expr]) -> Said | None:
    """What a call says to the user."""
    if not isinstance(node, ast.Call):
        return None
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    if name not in SAYING:
        return None
    given = [text_of(part, known) for part in node.args]
    if name == "ConfRule":
        rule = {part.arg: text_of(part.value, known) for part in node.keywords}
        return Said(
            rule["key"], in_sentences(f"engine {FILLED} {rule['why']}", f"Set {rule['value']}")
        )
    if name in OF_ANY_KEY:
        # Of whichever setting it is.
        name, given = "InputError", [FILLED, *given]
    if name in INPUT_ERRORS and len(given) == 3:
        return Said(given[0], in_sentences(given[1], given[2]))
    if name in NOT_OF_A_KEY and len(given) == 1:
        return Said("", given[0])
    return Said("", given[1]) if name in RUN_ERRORS and len(given) == 2 else None


def said_of_limits() -> Iterator[Said]:
    for limit in LIMITS:
        problem = re.sub(r"\{.+?\}", FILLED, limit.problem)
        yield Said(limit.key or limit.feature.key, in_sentences(problem, limit.remedy))


def everything_said() -> Iterator[Said]:
    for one in said_of_limits():
        yield replace(one, text=one.text.replace("`", ""))
    for path in sorted(SOURCE.rglob("*.py")):
        module = syntax_of(path)
        shared = assigned(module.body)
        functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
        others = [node for node in module.body if not isinstance(node, ast.FunctionDef)]
        for scope in [*functions, *others]:
            nodes = [*ast.walk(scope)]
            known = shared | assigned(nodes)
            for node in nodes:
                said = said_by(node, known)
                if said is not None:
                    yield replace(said, text=said.text.replace("`", ""))


@pytest.fixture(scope="module")
def said() -> set[Said]:
    return set(everything_said())


@pytest.fixture(scope="module")
def constants() -> set[str]:
    """All strings in the code, of which a key that is handed to a function is one."""
    nodes = (node for path in SOURCE.rglob("*.py") for node in ast.walk(syntax_of(path)))
    return {node.value for node in nodes if isinstance(node, ast.Constant)}


def pattern_of(text: str) -> re.Pattern[str]:
    return re.compile(".*?".join(map(re.escape, text.split(FILLED))), re.DOTALL)


def is_said(message: str, said: set[Said], constants: set[str]) -> bool:
    """Whether one place of the code says all of a message: key, problem and remedy."""
    text = re.sub(rf"^engine ({FILLED}|\w+)(, rank ({FILLED}|\d+))?: ", "", message)
    key = ""
    if text == message:
        key, _, text = message.partition(": ")
    pattern, whole = pattern_of(text), pattern_of(message)
    keys = {key, FILLED} if key in constants | {FILLED} else {key}
    return any(
        (one.key in keys and pattern.fullmatch(one.text))
        # Some that are no fault of a setting name one all the same.
        or (not one.key and whole.fullmatch(one.text))
        for one in said
    )


@pytest.mark.parametrize("message", MESSAGES)
def test_what_is_quoted_is_what_is_said(message, said, constants):
    assert is_said(message, said, constants)


@pytest.mark.parametrize(
    "message",
    [
        # Of parts that are there, but in two messages.
        "run.folder: … holds a run already. Name another folder.",
        "run.folder: Spark needs Java, and this machine has none. …",
        # Said in the log, which is no error.
        "training.resume: the run has made its … steps already. …",
        "engine …, rank …: nothing was seen of it for … s",
        "corpus.inputs: nothing matches …. Set training.epochs.",
        "nowhere.inputs: nothing matches …. Name existing files.",
    ],
)
def test_what_nobody_says_is_noticed(message, said, constants):
    assert not is_said(message, said, constants)


def test_the_page_is_of_some_length():
    assert len(MESSAGES) >= 25
    assert len(set(MESSAGES)) == len(MESSAGES)
