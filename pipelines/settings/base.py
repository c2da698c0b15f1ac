"""What all sections have in common."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import CoreSchema, core_schema

from pipelines.registry import Registry

if TYPE_CHECKING:
    from pipelines.settings import Config

logger = logging.getLogger(__name__)


class Settings(BaseModel):
    """A section of the configuration: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def check_with(self, config: Config) -> None:
        """Refuses what no field can refuse by itself; the section's keys are those at fault.

        Called once all fields of all sections are valid. A section alone is not checked: it may
        still lack what a job needs.

        Raises:
            InputError: Two settings contradict each other.
        """


def _separator(given: str | None) -> str | None:
    sign = {"\\t": "\t", "tab": "\t"}.get(given or "", given)
    if sign is not None and (len(sign) != 1 or sign in '"\r\n'):
        raise ValueError("one character is wanted, no quote or line end; \\\\t is a tab")
    return sign


def _escape(given: str | None) -> str | None:
    if given is not None and (len(given) != 1 or given in "\r\n"):
        raise ValueError("one character is wanted, most often a backslash")
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


@dataclass(frozen=True)
class Choice:
    """Marks a setting whose values are the names in a registry; see :func:`choice_of`."""

    registry: Registry[Any]

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


def choice_of(registry: Registry[Any]) -> Choice:
    """What makes a setting one of the names in a registry: in ``Annotated`` beside ``str``.

    Names that are not in the registry are refused with those that are, and the page of all
    settings lists them.
    """
    return Choice(registry)
