"""The tree keeps its shape: short files, imports in one direction, pages that name what exists."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

import pytest
from module_graph import PACKAGE, ROOT, Module, cycles, reached, read_modules, syntax_of

from pipelines.libraries import JOBS as JOBS_LIBRARIES

LONGEST_FILE = 800

# From left to right; nothing imports from its right. Names of one line may import one another.
ORDER = """
errors catalog libraries quiet variables lean_tensorflow progress interruption provenance
arrow_columns
settings
files
spark
corpus
tokens
lanes
losses
models
pretraining
runs
training
engines
vectors
questions scoring
publishing
evaluation
embedding
report
model_card
promotion
tracking
exports
jobs compare
ml notebook
cli __main__
"""
PLACES = {name: place for place, line in enumerate(ORDER.split("\n")) for name in line.split()}
LEFTMOST = 0  # of the package itself, which holds the version and nothing else

# Loading one takes seconds and hundreds of megabytes, and no installation has all of them. Only
# modules that exist for one import it as soon as they are imported themselves.
TORCH = (
    *("*torch*", "*fsdp", "*sharded", "*process_group", "*deepspeed*", "*.orca.*", "*.devices"),
    *("*.model_parallel", "*.megatron.*", "*.questions.local_model"),
)
MESH = ("*.engines.mesh.*",)
HEAVY = {
    "tensorflow": ("*tensorflow*", "*.elephas.spark_model", "*.elephas.steps", *MESH),
    "mesh_tensorflow": ("*.mesh.library",),
    "torch": TORCH,
    "deepspeed": ("*deepspeed", "*deepspeed_pipeline"),
    "megatron": ("*.megatron.*",),
    "bigdl": ("*.orca.*", "*.bigdl.*"),
    "horovod": ("*.horovod.*",),
    "elephas": ("*.elephas.*",),
    "tensorflowonspark": ("*.tensorflowonspark.*",),
    "tf_keras": (),
    "openvino": ("*openvino*",),
    "deltalake": (),
    "pyiceberg": (),
    "mlflow": ("*.tracking.mlflow",),
    "tensorboardX": ("*.tracking.tensorboard",),
    "transformers": (
        *("*.hf.torch*", "*.exports.torch_graph", "*.rerankers.torch"),
        "*.questions.local_model",
    ),
    "openai": ("*.questions.endpoint",),
    "vllm": ("*.questions.vllm",),
    "onnx_ir": ("*.exports.onnx",),
    "onnxruntime": ("*.exports.onnx",),
    "model2vec": ("*.exports.model2vec",),
    "sentence_transformers": (),
    "lancedb": ("*.publishing.lancedb",),
    "psycopg": ("*.publishing.pgvector",),
    "pgvector": ("*.publishing.pgvector",),
    "qdrant_client": ("*.publishing.qdrant",),
    "pymilvus": ("*.publishing.milvus",),
    "opensearchpy": (),
    "elasticsearch": (),
}
JOBS = (
    *("prepare", "train", "evaluate", "run", "embed", "publish", "mine", "search", "promote"),
    *("report", "export", "ask", "score"),
)
# What a driver or a notebook imports first, before it knows which engine is asked for.
FIRST = (
    "cli",
    *(f"jobs.{one}" for one in JOBS),
    "ml",
    "notebook",
    "settings",
    "errors",
)
# What an install without extras is for: the model in service, its digest, its weights, and help.
LEAN = ("promotion", "models.folder", "settings.load", "cli")

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PATH = re.compile(r"`((?:[\w-]+/)*\w+\.(?:py|java|toml|lock|patch|properties))`")
FOLDER = re.compile(r"(?<![\w/.-])(pipelines(?:/\w+)+)/?(?![\w.<-])")
NAME = re.compile(r"(?<![\w/.-])pipelines(?:\.[A-Za-z_]\w*)+")
ENTRY = re.compile(r'"(pipelines(?:\.\w+)+):(\w+)"')
# What is asked of a place by functions of `pipelines.files`, which know its kind.
ASKS_FOR_KIND = re.compile(r"isinstance\(.*\b(?:Remote)?Path\b.*\)", re.DOTALL)
# Of a page that code, messages, jobs and notebooks name, and of a link with its anchor.
PAGE = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|jsonl|svg)")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
NAMING = ("Makefile", "CONTRIBUTING.md", "README.md", "notebooks/*.ipynb", "jobs/**/*.yaml")
PLACEHOLDER = "NAME"  # in the path of a file that the reader is to write
# Below which the pages name files by shorter paths.
FOLDERS = ("", "pipelines", "bench/pipelines_bench", "tests", "environment", "jobs", "jobs/dags")


def place(module: str) -> int:
    """Where a module stands in the order, by the part of the package that it belongs to."""
    parts = module.split(".")
    return PLACES[parts[1]] if len(parts) > 1 else LEFTMOST


def python_files() -> Iterator[Path]:
    for folder in ("pipelines", "bench", "tests", "jobs", "environment", "tools"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_no_file_is_too_long_to_be_read_at_once():
    lengths = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n")
        for path in python_files()
    }
    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}


def test_no_two_files_of_tests_share_a_name():
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    # Pytest imports them by it.
    assert [name for name, count in names.items() if count > 1] == []


def test_every_part_of_the_package_has_its_place():
    parts = {name.split(".")[1] for name in read_modules() if "." in name}
    assert parts - set(PLACES) == set()


def test_imports_go_from_right_to_left():
    wrong = [
        f"{name} imports {other}"
        for name, module in read_modules().items()
        for other in sorted(module.imports)
        # The package itself names what is public, wherever it is.
        if name != PACKAGE and other in read_modules() and place(other) > place(name)
    ]
    assert wrong == []


def test_the_catalog_imports_nothing_but_errors():
    imports = read_modules()["pipelines.catalog"].imports & {*read_modules()}
    assert imports == {"pipelines.errors"}


def test_what_the_catalog_names_exists():
    named = ENTRY.findall(read_modules()["pipelines.catalog"].path.read_text(encoding="utf-8"))
    assert named
    assert [one for one in named if not name_exists(".".join(one))] == []


def test_a_place_knows_what_kind_it_is():
    asking = [
        f"{name}:{node.lineno}"
        for name, module in read_modules().items()
        if name.split(".")[1:2] != ["files"]
        for node in ast.walk(syntax_of(module.path))
        if isinstance(node, ast.Call) and ASKS_FOR_KIND.fullmatch(ast.unparse(node))
    ]
    assert asking == []


def test_the_package_knows_no_benchmark():
    imports = {name: module.imports for name, module in read_modules().items()}
    assert [name for name, found in imports.items() if "pipelines_bench" in str(found)] == []


def test_no_modules_import_one_another():
    graph = {name: module.imports for name, module in read_modules().items() if name != PACKAGE}
    assert cycles(graph) == []


@pytest.mark.parametrize("library", HEAVY)
def test_only_modules_that_exist_for_a_heavy_library_import_it(library):
    modules = read_modules().items()
    importing = [name for name, module in modules if imports_library(module, library)]
    assert [name for name in importing if not allowed(name, HEAVY[library])] == []


def imports_library(module: Module, library: str) -> bool:
    return any(name.partition(".")[0] == library for name in module.at_once)


def allowed(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


@pytest.mark.parametrize("name", FIRST)
def test_what_is_imported_first_loads_no_heavy_library(name):
    loaded = {found.partition(".")[0] for found in reached(f"pipelines.{name}", read_modules())}
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", LEAN)
def test_what_a_server_imports_needs_no_library_of_jobs(name):
    loaded = {found.partition(".")[0] for found in reached(f"pipelines.{name}", read_modules())}
    assert loaded.isdisjoint({"pyspark", "py4j", *JOBS_LIBRARIES})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_holds_no_marks_of_a_merge(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith(("<<<<<<< ", ">>>>>>> "))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    named = {*PATH.findall(text), *FOLDER.findall(text)}
    assert sorted(path for path in named if not (PLACEHOLDER in path or file_exists(path))) == []


def test_what_several_extras_need_is_the_same_in_all():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    # An extra may want less of what all need: its library is for an older release.
    of_all = ("spark", "jobs")
    needed = {*chain(*(extras[name] for name in extras if name not in of_all))}
    names = Counter(re.split(r"[<>=]", requirement)[0] for requirement in needed)
    assert [name for name, count in names.items() if count > 1] == []
    (torch,) = (requirement for requirement in needed if requirement.startswith("torch="))
    assert f"TORCH := {torch}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_pages_that_are_named_exist():
    naming = [*python_files(), *chain.from_iterable(ROOT.glob(pattern) for pattern in NAMING)]
    texts = {path: path.read_text(encoding="utf-8") for path in naming}
    missing = {
        f"{path.relative_to(ROOT)} names {page}"
        for path, text in texts.items()
        for page in PAGE.findall(text)
        if not (ROOT / page).exists()
    }
    assert sorted(missing) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page):
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text(encoding="utf-8"))
    wrong = []
    for path, anchor in LINK.findall(re.sub(r"`[^`]*`", "", text)):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(f"{path}#{anchor}")
    assert wrong == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", one).strip().lower().replace(" ", "-") for one in headings}


def file_exists(path: str) -> bool:
    """Whether a file is there: below one of the folders, or by its bare name anywhere in them."""
    if any((ROOT / folder / path).exists() for folder in FOLDERS):
        return True
    return "/" not in path and any(any((ROOT / folder).rglob(path)) for folder in FOLDERS[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_modules_and_functions_that_a_page_names_exist(page):
    named = set(NAME.findall(page.read_text(encoding="utf-8")))
    assert sorted(name for name in named if not name_exists(name)) == []


def name_exists(name: str) -> bool:
    """Whether a dotted name is a module, or what a module defines or imports."""
    if name in read_modules():
        return True
    owner, _, attribute = name.rpartition(".")
    if owner not in read_modules():
        return False
    return attribute in set(names_defined(read_modules()[owner].path))


def names_defined(path: Path) -> Iterator[str]:
    """What a module has at its top level, and what it imports there for type checkers."""
    tree = syntax_of(path).body
    for node in chain(tree, *(node.body for node in tree if isinstance(node, ast.If))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_only_sanitised_text_reaches_the_terminal() -> None:
    for name, module in read_modules().items():
        text = module.path.read_text(encoding="utf-8")
        own = name == "pipelines.progress.screen"
        assert own or "rich.console import Console" not in text, f"{name}: take Screen"
        if name == "pipelines.cli" or name.startswith("pipelines.jobs"):
            assert re.search(r"(?<![\w.])print\(", text) is None, f"{name}: take say"
