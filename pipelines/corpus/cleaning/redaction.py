"""`corpus.redact`: the user's function for each text, before all else.

Executors call it once for each text of a row, before the text is cut, hashed or written. The driver
calls it once, to refuse a broken function before Spark reads anything.
"""

from __future__ import annotations

import hashlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import pyarrow as pa

from pipelines.arrow_columns import with_values
from pipelines.errors import InputError

KEY = "corpus.redact"
TEXT_COLUMNS = ("title", "text_0", "text_1", "negatives")
"""The columns of a raw row with texts, or with an excerpt of unreadable data."""

_PROBE = "A text that is read by nobody."
_REMEDY = "Name a function from text to text as `module:function`"

Redactor = Callable[[str], str]


def check_redactor(name: str) -> list[str]:
    """Try the function, and return its identity: its name and a digest of its file.

    Runs on the driver. The digest leaves out the imports of that file. An `InputError` names a
    missing function, or one that returns something else than text.
    """
    function = _loaded(name)
    _text_of(name, function, _PROBE)
    source = inspect.getsourcefile(inspect.unwrap(function))
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""
    return [name, digest]


def redact_batches(
    batches: Iterable[pa.RecordBatch], name: str | None, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches with the named columns redacted, nulls left as they are. Runs on an executor.

    Columns hold strings or lists of them; a batch may lack some. Without a name (`module:function`)
    all texts stay as they are. If the function fails, the `InputError` does not show the text.
    """
    if name is None:
        yield from batches
        return
    function = _loaded(name)
    for batch in batches:
        arrays = [
            _redacted(name, function, array) if column in columns else array
            for column, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _redacted(name: str, function: Redactor, texts: pa.Array) -> pa.Array:
    if pa.types.is_list(texts.type):
        return with_values(texts, _redacted(name, function, texts.flatten()))
    found = [text and _text_of(name, function, text) for text in texts.to_pylist()]
    return pa.array(found, texts.type)


def _text_of(name: str, function: Redactor, text: str) -> str:
    try:
        found = function(text)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is of the user's function
        # Its message may quote the text, and logs would show it.
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}"
        kind = type(error).__name__
        raise InputError(KEY, f"`{name}` raised {kind} ({place})", "Correct the function") from None
    if not isinstance(found, str):
        raise InputError(
            KEY,
            f"`{name}` returned {type(found).__name__} for a text",
            "Let it return text, empty if nothing is left",
        )
    return found


@lru_cache(maxsize=1)
def _loaded(name: str) -> Redactor:
    """Load the function, once in a Python worker."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError as error:
        problem = f"`{module}` cannot be imported ({error})"
        remedy = "Put it where driver and executors import from: see docs/concepts/corpus.md"
        raise InputError(KEY, problem, remedy) from None
    if not callable(found):
        raise InputError(KEY, f"`{module}` has no function `{attribute}`", _REMEDY)
    function: Redactor = found
    return function
