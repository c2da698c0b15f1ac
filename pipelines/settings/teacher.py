"""The section `teacher` of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipelines.errors import InputError
from pipelines.settings.base import Settings
from pipelines.settings.paths import StoredPath

if TYPE_CHECKING:
    from pipelines.settings import Config

Precision = Literal["fp16", "fp32"]
START = "start"
"""The teacher that is the start itself."""


class TeacherSettings(Settings):
    """Whose vectors the lanes hold beside the texts, for objectives that learn from them."""

    model: StoredPath | None = Field(
        default=None,
        description=(
            "A sentence-transformers folder, or `start`: that of `encoder.start`. `prepare` has it "
            "embed each text of the corpus once, anchors as queries and the others as documents; "
            "it computes as `embedding.backend`, `precision` and `batch_tokens` say."
        ),
    )
    vectors: tuple[StoredPath, ...] = Field(
        default=(),
        description=(
            "Folders of tables that `embed` wrote of the texts, instead of `teacher.model`."
        ),
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        description="Values of a vector to keep, of models trained for it; unset: all.",
    )
    precision: Precision = Field(
        default="fp16", description="How a value of a vector is stored in the lanes."
    )

    @property
    def is_asked(self) -> bool:
        """Whether there is to be a teacher."""
        return self.model is not None or bool(self.vectors)

    def check_with(self, config: Config) -> None:
        """Refuses two teachers, or a width of none.

        Raises:
            InputError: Of `teacher.vectors` or `teacher.dimensions`.
        """
        if self.model is not None and self.vectors:
            raise InputError("teacher.vectors", "teacher.model is set too", "leave one of them out")
        if self.model == START and config.encoder.start == "random":
            raise InputError(
                "teacher.model", "a random start teaches nothing", "name a model's folder"
            )
        if self.dimensions is not None and self.model is None:
            raise InputError(
                "teacher.dimensions", "it is of teacher.model", "set that, or leave it out"
            )
