"""The section `card` of the settings."""

from __future__ import annotations

import re

from pydantic import Field

from pipelines.errors import InputError
from pipelines.settings.base import Settings

# As the hub has them: a name, or an owner and a name.
_REPOSITORY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
_LANGUAGE = re.compile(r"[a-z]{2,3}|multilingual|code")


class CardSettings(Settings):
    """What the model card says that nothing else tells. Nothing of it is ever guessed."""

    name: str | None = Field(default=None, description="Of the model; unset: that of the run.")
    license: str | None = Field(
        default=None,
        description=(
            "Of the model, as the Hugging Face hub calls it (`apache-2.0`, `cc-by-sa-4.0`); one "
            "that the hub does not know is named as it is. Unset: the card names none."
        ),
    )
    license_link: str | None = Field(
        default=None, description="Where the licence can be read, `LICENSE` or an address."
    )
    languages: tuple[str, ...] = Field(
        default=(),
        description=(
            "Languages of the texts (ISO 639 codes, or `multilingual`); empty: those of "
            "`corpus.languages`."
        ),
    )
    start_name: str | None = Field(
        default=None,
        description=(
            "Name on the hub of `encoder.start` (`OWNER/NAME`). Unset: that of the packaged start, "
            "or of one in the hub's cache; the card tells others as they are set."
        ),
    )
    datasets: tuple[str, ...] = Field(
        default=(), description="Names on the hub of what the texts are taken from."
    )
    data_description: str | None = Field(
        default=None, description="What the texts are, and where they are from, in a few words."
    )
    data_license: str | None = Field(
        default=None, description="Licence of the texts, in a few words."
    )

    def check(self) -> None:
        """Refuses names that the hub would not take."""
        base = () if self.start_name is None else (self.start_name,)
        named = [("start_name", name) for name in base]
        for key, name in [*named, *(("datasets", name) for name in self.datasets)]:
            if _REPOSITORY.fullmatch(name) is None:
                raise InputError(
                    f"card.{key}", f"`{name}` is no name on the hub", "write OWNER/NAME"
                )
        for language in self.languages:
            if _LANGUAGE.fullmatch(language) is None:
                raise InputError(
                    "card.languages",
                    f"`{language}` is no ISO 639 code",
                    "two or three letters such as `en`, `multilingual` or `code`",
                )
