"""Docstrings come from the syntax tree; nothing is imported."""

import pyarrow as pa
import pytest

from pipelines.corpus.readers.docstrings import (
    SourceFile,
    docstring_batches,
    file_docstrings,
    installed_roots,
    source_files,
)

SOURCE = '''
"""Module text."""
raise SystemExit("whoever imports this file fails")

class Outer:
    """Class text.

        Indented.

    Not indented.
    """

    def method(self):
        """Method text."""
        def hidden():
            """Nobody's text."""

    class Inner:
        def method(self):
            """Inner text."""

if True:
    async def function():
        """Function text."""

def without():
    "   "
'''


def write(folder, path, source):
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(source if isinstance(source, bytes) else source.encode())
    return SourceFile(str(folder), path)


def test_names_and_cleaned_texts(tmp_path):
    found, reason = file_docstrings(write(tmp_path, "package/module.py", SOURCE))
    assert reason is None
    assert {docstring.document: docstring.text for docstring in found} == {
        "package/module.py::<module>": "Module text.",
        "package/module.py::Outer": "Class text.\n\n    Indented.\n\nNot indented.",
        "package/module.py::Outer.method": "Method text.",
        "package/module.py::Outer.Inner.method": "Inner text.",
        "package/module.py::function": "Function text.",
    }


@pytest.mark.parametrize(
    ("path", "source", "reason"),
    [
        ("p/tests/a.py", '"""Text."""', "test code"),
        ("p/test_a.py", '"""Text."""', "test code"),
        ("p/_vendor/other/a.py", '"""Text."""', "copy of another package"),
        ("p/a.py", "x = 1", "no docstring"),
        ("p/a.py", 'x = """no docstring"""', "no docstring"),
        ("p/a.py", '"""Text."""\nprint 1', "does not parse"),
        ("p/a.py", b'"""Text \xff."""', "does not parse"),
        ("p/a.py", b'"""Text."""\x00', "does not parse"),
    ],
)
def test_files_without_docstrings_say_why(tmp_path, path, source, reason):
    assert file_docstrings(write(tmp_path, path, source)) == ([], reason)


def test_a_file_that_went_away(tmp_path):
    assert file_docstrings(SourceFile(str(tmp_path), "p/gone.py")) == ([], "not readable")


def test_files_are_found_once_and_caches_left_out(tmp_path):
    for path in ("a/b.py", "site-packages/c/d.py", "a/__pycache__/b.py", "e.py", "a/data.txt"):
        write(tmp_path, path, "")
    found = source_files([tmp_path, tmp_path / "site-packages"])
    assert [(file.path, file.package) for file in found] == [
        ("a/b.py", "a"),
        ("e.py", "e"),
        ("c/d.py", "c"),
    ]


def test_this_environment_has_packages_and_a_standard_library():
    packages = {file.package for file in source_files(installed_roots())}
    assert {"pyspark", "json"} <= packages


def test_batches_count_files_and_survive_half_a_surrogate_pair(tmp_path):
    write(tmp_path, "p/a.py", '"""Text \\ud800."""')
    write(tmp_path, "p/b.py", "x = 1")
    batch = pa.RecordBatch.from_pydict({"root": [str(tmp_path)] * 2, "path": ["p/a.py", "p/b.py"]})
    rows = [row for result in docstring_batches([batch]) for row in result.to_pylist()]
    assert [(row["level"], row["text"], row["reason"]) for row in rows] == [
        ("source files", None, None),
        ("rows", "Text ?.", None),
        ("source files", None, "no docstring"),
    ]
