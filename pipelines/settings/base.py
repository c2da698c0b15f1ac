"""The base of all sections: their class, and the types of choices and paths."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from pipelines.catalog import Registry
from pipelines.errors import in_sentences

logger = logging.getLogger(__name__)

REFUSED: Final = "refused"
"""The type of validation errors that hold a problem and its remedy."""

# YAML 1.1 and Python read these as different numbers: 010, 0x1F, 1_000 and 1:30.
_OTHER_NOTATION = re.compile(r"[-+]?(0[0-9box_]|[0-9.][0-9.e+-]*[_:])", re.IGNORECASE)
_LARGEST = 1 << 63
# Python refuses int() of a text with more than 4,300 digits.
_LONGEST = 1000


RENAMED: dict[str, str] = {"training.tokens_per_micro_batch": "training.tokens_per_forward"}
"""Current names of settings by their former names, which are read for one release.

Both include the section, and cover all keys below them.
"""


def current_key(key: str) -> str:
    """Return the current key of a setting; log a former one."""
    for before, now in RENAMED.items():
        if key == before or key.startswith(f"{before}."):
            logger.warning("%s is called %s now", before, now)
            return now + key.removeprefix(before)
    return key


class Settings(BaseModel):
    """A section of the settings: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _as_asked_for(cls, given: Any, info: ValidationInfo) -> Any:
        """Return texts as they are written, and numbers in decimal notation."""
        kinds = value_kinds(cls.model_fields[info.field_name or ""].annotation)
        if kinds & {int, float}:
            return _each(_checked_number, given)
        return _each(_as_written, given) if str in kinds else given

    def check(self) -> None:
        """Refuse contradictions within the section, by an InputError that names the key.

        Runs once all fields of all sections are valid. A section alone is not checked: it may still
        lack what a job needs.
        """


def _separator(given: str | None) -> str | None:
    sign = {"\\t": "\t", "tab": "\t"}.get(given or "", given)
    if sign is not None and (len(sign) != 1 or sign in '"\r\n'):
        remedy = "Write one character, but no quote or line end (`tab` is a tab)"
        raise refusal(f"`{given}` is no separator", remedy)
    return sign


def _escape(given: str | None, info: ValidationInfo) -> str | None:
    # The separator is the field before it in every section.
    is_separator = given == (info.data.get("csv_separator") or ",")
    if given is not None and (len(given) != 1 or given in "\r\n" or is_separator):
        problem = "it is the separator" if is_separator else f"`{given}` is no escape"
        raise refusal(problem, "Write one character, most often a backslash")
    # A quote before a quote is the rule anyway.
    return None if given == '"' else given


CsvSeparator = Annotated[
    str | None,
    AfterValidator(_separator),
    Field(
        description=(
            "CSV field separator: one character, or `tab`. Null: a comma. `.tsv` and `.tab` always "
            "have tabs."
        )
    ),
]
CsvEscape = Annotated[
    str | None,
    AfterValidator(_escape),
    Field(
        description=(
            "Character before quotes and itself in quoted CSV fields: a backslash in Spark's "
            "output. Null: doubled quotes."
        )
    ),
]


FollowLinks = Annotated[
    bool,
    Field(description="Follow links out of input folders and globs. `false`: refuse them."),
]


def value_kinds(annotation: Any) -> set[Any]:
    """Return the types of a setting's values, or of the items of a list or mapping."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is None:
        return {annotation}
    if origin is Annotated:
        return value_kinds(parts[0])
    inner = parts[1:] if origin is Mapping else parts
    return {kind for part in inner for kind in value_kinds(part)}


def refusal(problem: str, remedy: str) -> PydanticCustomError:
    """Return a validator's error for a problem of the user's."""
    # `load` takes problem and remedy from the context, to put the key before them.
    return PydanticCustomError(
        REFUSED, in_sentences("{problem}", "{remedy}"), {"problem": problem, "remedy": remedy}
    )


def _each(change: Callable[[Any], Any], given: Any) -> Any:
    """Apply a change to a value, or to each item of a list or mapping."""
    if isinstance(given, Mapping):
        return {key: _each(change, value) for key, value in given.items()}
    if isinstance(given, (list, tuple)):
        return [_each(change, value) for value in given]
    return change(given)


def _as_written(given: Any) -> Any:
    if isinstance(given, bool):
        return str(given).lower()
    # Numbers of a file keep their spelling; an attribute spares the import of `yaml_file`.
    return getattr(given, "written", given)


def _checked_number(given: Any) -> Any:
    """Return the value; refuse truth values, and numbers that readers take for different ones."""
    if isinstance(getattr(given, "truth", given), bool):
        written = str(given).lower() if isinstance(given, bool) else given
        raise refusal(f"`{written}` is no number", "Write a number, such as 1")
    plain = given.strip() if isinstance(given, str) else given
    if isinstance(plain, str) and _OTHER_NOTATION.match(plain):
        raise refusal(f"`{plain[:50]}` is no decimal number", "Write it as 12, -3, 0.5 or 2e-5")
    digits = plain.lstrip("+-") if isinstance(plain, str) else ""
    if digits.isdecimal() and len(digits) < _LONGEST:
        plain = int(digits)
    if isinstance(plain, int) and abs(plain) >= _LARGEST:
        raise refusal("the number is 2^63 or more", "Write a smaller one")
    return given


@dataclass(frozen=True)
class Choice:
    """The mark of a setting whose values are names in a registry; see :func:`choice_of`."""

    registry: Registry
    others: tuple[str, ...] = ()

    def current(self, name: str) -> str:
        """Return the current name of an entry; log a former one, valid for one release.

        Raises:
            InputError: There is no such entry.
        """
        if name in self.others:
            return name
        current = self.registry.check(name)
        if current != name:
            logger.warning("%s: `%s` is called `%s` now", self.registry.key, name, current)
        return current

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.current, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "enum": [*self.others, *self.registry]}


def choice_of(registry: Registry, *others: str) -> Choice:
    """Return the mark, for ``Annotated``, of a `str` setting with names in a registry.

    Refusals and the page of all settings list the names. `others` are values without an entry.
    """
    return Choice(registry, others)


_MOUNT = "Mount it and give the path that the driver and every executor see"
# `$1` and `a$` are names; a shell would replace `$HOME` and `${HOME}`.
_VARIABLE = re.compile(r"\$(\{|[A-Za-z_])")
# A single letter and a colon would be a drive, and a name without a slash may have a colon.
_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/", re.IGNORECASE)
_FILE = re.compile(r"file:(?:(?!//[^/])|//localhost(?=/))/*(?=/)", re.IGNORECASE)
_IN_STORE = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]+)://(?P<authority>[^/]*)(?P<path>.*)", re.IGNORECASE | re.DOTALL
)


class Scheme(NamedTuple):
    """The form of the addresses with a scheme.

    Attributes:
        kind: The store; :mod:`pipelines.files.stores` has its clients under this name.
        has_account: Whether an address may name an account, which is no secret.
    """

    kind: str
    has_bucket: bool = True
    has_account: bool = False


STORES: Mapping[str, Scheme] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), Scheme("s3")),
    **dict.fromkeys(("gs", "gcs"), Scheme("gs")),
    **dict.fromkeys(("abfss", "abfs"), Scheme("abfss", has_account=True)),
    "hdfs": Scheme("hdfs", has_bucket=False, has_account=True),
    "viewfs": Scheme("viewfs", has_bucket=False, has_account=True),
}
"""Forms by the scheme of an address; fsspec may know other schemes."""
# Databricks mounts them as folders, and Spark's spelling of a path is no address of a store.
_MOUNTED = ("file", "local", "dbfs")
_BY_NAME = ("delta", "iceberg", "table")
"""Formats whose inputs Spark finds: table names, and addresses of Delta tables."""


class IsPath:
    """The mark of settings that name files and folders; see :data:`StoredPath`."""


class NotLocalError(ValueError):
    """A value that is no local path, with the problem and its remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(in_sentences(problem, remedy))
        self.problem = problem
        self.remedy = remedy


def local_path(given: str) -> str:
    """Return a path on a file system, from a path, `~/...` or a `file:` address.

    Raises:
        NotLocalError: It is an address of another kind or another host, or names nothing.
    """
    if not given or "\0" in given:
        raise NotLocalError(f"{given!r} names no file or folder", "Give a path")
    _check_variables(given)
    plain = _FILE.sub("", given, count=1)
    address = _ADDRESS.match(plain)
    if address is not None:
        where = "another host" if address["scheme"].lower() == "file" else address["scheme"]
        raise NotLocalError(f"`{given}` is on {where}, not on a file system", _MOUNT)
    try:
        return str(Path(plain).expanduser()) if plain.startswith("~") else plain
    except RuntimeError:
        raise NotLocalError(
            f"`{given}` is the home of an unknown user", "Put ./ before it if it is a name"
        ) from None


def stored_path(given: str) -> str:
    """Return an address in an object store as it is, or a path as :func:`local_path` does.

    Raises:
        NotLocalError: It is neither.
    """
    _check_variables(given)
    address = _IN_STORE.fullmatch(given)
    if address is None or address["scheme"].lower() in _MOUNTED:
        return local_path(given)
    scheme = address["scheme"].lower()
    if scheme not in STORES and not _is_known_to_fsspec(scheme):
        raise NotLocalError(
            f"`{given}` is in an unknown kind of store", f"Choose one of {', '.join(STORES)}"
        )
    known = STORES.get(scheme, Scheme(scheme, has_bucket=False))
    if not address["authority"] and known.has_bucket:
        raise NotLocalError(f"`{given}` names no bucket", f"Write {scheme}://BUCKET/FOLDER")
    if "@" in address["authority"] and not known.has_account:
        raise NotLocalError(
            f"`{given}` holds credentials",
            "Leave them to the environment; see docs/guides/buckets.md",
        )
    # A store has names and no folders, so `..` would be a part of a name.
    if ".." in address["path"].split("/"):
        raise NotLocalError(f"`{given}` goes up a folder", "Write the address without `..`")
    return given


def _check_variables(given: str) -> None:
    """Refuse an environment variable in a path: the package replaces none."""
    if _VARIABLE.search(given):
        raise NotLocalError(
            f"`{given}` names a variable, and settings take none", "Write its value"
        )


def _is_known_to_fsspec(scheme: str) -> bool:
    # Local paths work without fsspec.
    try:
        from fsspec.registry import known_implementations, registry
    except ImportError:
        return False
    return scheme in known_implementations or scheme in registry


def _checked_local(given: str) -> str:
    return _as_refusal(local_path, given)


def _checked(given: str) -> str:
    return _as_refusal(stored_path, given)


def _as_refusal(check: Callable[[str], str], given: str) -> str:
    # A ValueError would lose its remedy in pydantic's own message.
    try:
        return check(given)
    except NotLocalError as error:
        raise refusal(error.problem, error.remedy) from None


def _checked_input(given: str, info: ValidationInfo) -> str:
    # Delta tables may have a path; Spark looks up names and addresses.
    return _checked_if_path(given) if info.data.get("format") in _BY_NAME else _checked(given)


def _checked_if_path(given: str) -> str:
    is_path = given.startswith(("~", "$", "/", ".")) and "://" not in given
    if is_path or "${" in given:
        return _checked_local(given)
    return given


LocalPath = Annotated[str, AfterValidator(_checked_local), IsPath()]
"""A file or folder on a file system. Addresses of other kinds would make a folder of that name."""

StoredPath = Annotated[str, AfterValidator(_checked), IsPath()]
"""A file or folder on a file system or in an object store."""


NameOrPath = Annotated[str, AfterValidator(_checked_if_path)]
"""A name or address for a library to look up, or a path on a file system."""

InputPath = Annotated[str, AfterValidator(_checked_input), IsPath()]
"""A stored path, or a table where the section's `format`, a field before it, allows one."""
