"""What all sections have in common."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_origin

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

logger = logging.getLogger(__name__)

REFUSED: Final = "refused"
"""Type of the validation errors that say what is wrong and what would be right."""

# What YAML 1.1 or Python reads as a number, each in its own way: 010, 0x1F, 1_000 and 1:30.
_OTHER_NOTATION = re.compile(r"[-+]?(0[0-9box_]|[0-9.][0-9.e+-]*[_:])", re.IGNORECASE)
_LARGEST = 1 << 63
_LONGEST = 1000


class Settings(BaseModel):
    """A section of the configuration: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _as_asked_for(cls, given: Any, info: ValidationInfo) -> Any:
        """A text as it is written where one is asked for, and numbers in one notation."""
        kinds = value_kinds(cls.model_fields[info.field_name or ""].annotation)
        if kinds & {int, float}:
            return _each(_checked_number, given)
        return _each(_as_written, given) if str in kinds else given

    def check(self) -> None:
        """Refuses what no field can refuse by itself; the section's keys are those at fault.

        Called once all fields of all sections are valid. A section alone is not checked: it may
        still lack what a job needs.

        Raises:
            InputError: Two settings contradict each other.
        """


def _separator(given: str | None) -> str | None:
    sign = {"\\t": "\t", "tab": "\t"}.get(given or "", given)
    if sign is not None and (len(sign) != 1 or sign in '"\r\n'):
        remedy = "write one character, no quote or line end; `tab` is a tab"
        raise refusal(f"`{given}` is no separator", remedy)
    return sign


def _escape(given: str | None) -> str | None:
    if given is not None and (len(given) != 1 or given in "\r\n"):
        raise refusal(f"`{given}` is no escape", "write one character, most often a backslash")
    # A quote before a quote is the rule anyway.
    return None if given == '"' else given


CsvSeparator = Annotated[
    str | None,
    AfterValidator(_separator),
    Field(
        description=(
            "Sign between the fields of CSV, such as `;`. Unset: a comma. It is always a tab in "
            "what is named `.tsv` or `.tab`."
        )
    ),
]
CsvEscape = Annotated[
    str | None,
    AfterValidator(_escape),
    Field(
        description=(
            "Sign before a quote within the quotes of a CSV field, and before itself: a backslash "
            "in what Spark writes. Unset: quotes there are doubled."
        )
    ),
]


FollowLinks = Annotated[
    bool,
    Field(
        description=(
            "Whether links in a folder of inputs, or among what a glob matches, are followed out "
            "of it. If not, they are refused."
        )
    ),
]


def value_kinds(annotation: Any) -> set[Any]:
    """The types of the single values that a setting takes: of each item of a list or mapping."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is None:
        return {annotation}
    if origin is Annotated:
        return value_kinds(parts[0])
    inner = parts[1:] if origin is Mapping else parts
    return {kind for part in inner for kind in value_kinds(part)}


def refusal(problem: str, remedy: str) -> PydanticCustomError:
    """What a validator raises where a value has a problem that a user can mend."""
    return PydanticCustomError(
        REFUSED, "{problem}, {remedy}", {"problem": problem, "remedy": remedy}
    )


def _each(change: Callable[[Any], Any], given: Any) -> Any:
    """A value, or each one of a list or of a mapping, changed."""
    if isinstance(given, Mapping):
        return {key: _each(change, value) for key, value in given.items()}
    if isinstance(given, (list, tuple)):
        return [_each(change, value) for value in given]
    return change(given)


def _as_written(given: Any) -> Any:
    if isinstance(given, bool):
        return str(given).lower()
    # Numbers of a file know how they are written; see `yaml_file`, which help need not import.
    return getattr(given, "written", given)


def _checked_number(given: Any) -> Any:
    """A value that may be a number, unless it is none that every reader takes for the same."""
    if isinstance(getattr(given, "truth", given), bool):
        written = str(given).lower() if isinstance(given, bool) else given
        raise refusal(f"`{written}` is no number", "write one, for example 1")
    plain = given.strip() if isinstance(given, str) else given
    if isinstance(plain, str) and _OTHER_NOTATION.match(plain):
        raise refusal(f"`{plain[:50]}` is no decimal number", "write it as 12, -3, 0.5 or 2e-5")
    digits = plain.lstrip("+-") if isinstance(plain, str) else ""
    if digits.isdecimal() and len(digits) < _LONGEST:
        plain = int(digits)
    if isinstance(plain, int) and abs(plain) >= _LARGEST:
        raise refusal("it is 2^63 or more", "give a smaller number")
    return given


@dataclass(frozen=True)
class Choice:
    """Marks a setting whose values are the names in a registry; see :func:`choice_of`."""

    registry: Registry

    def current(self, name: str) -> str:
        """A name as it is today; an old one is read for one release, with a line in the log.

        Raises:
            InputError: There is nothing of that name.
        """
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
        return {**handler(schema), "enum": list(self.registry)}


def choice_of(registry: Registry) -> Choice:
    """What makes a setting one of the names in a registry: in ``Annotated`` beside ``str``.

    Names that are not in the registry are refused with those that are, and the page of all
    settings lists them.
    """
    return Choice(registry)
