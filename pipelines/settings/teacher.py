"""The section `teacher` of the settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipelines.settings.base import Settings
from pipelines.settings.paths import StoredPath

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
