"""Pairs and documents with known vectors, and their negatives by brute force."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.settings import MiningSettings
from pipelines.vectors.mining_texts import Anchors

WIDTH = 64


@dataclass(frozen=True)
class Case:
    """Pairs of an anchor and a document, which may have groups.

    Attributes:
        anchors: [anchors, dimensions], of length 1.
        documents: [documents, dimensions], of length 1.
        pairs: An anchor and a document each, sorted.
        anchor_groups: Of each anchor.
        document_groups: Of each document.
        own: Document whose text is that of an anchor, for each; -1 where there is none.
    """

    anchors: np.ndarray
    documents: np.ndarray
    pairs: list[tuple[int, int]]
    anchor_groups: list[set[int]]
    document_groups: list[set[int]]
    own: list[int]

    @classmethod
    def random(cls, seed: int, anchors: int = 40, documents: int = 700, groups: int = 12) -> Case:
        """Clusters of vectors, in which positives are near their anchors, as embeddings are.

        All values are 1/8 or -1/8, so that cosines are exact however they are added up, and many
        are equal: these are ordered by the document.
        """
        draw = np.random.default_rng(seed)
        signs = draw.choice([-1, 1], (9, WIDTH))

        def near_to(some: np.ndarray, share: float) -> np.ndarray:
            return np.where(draw.random(some.shape) < share, -some, some)

        texts = near_to(signs[draw.integers(0, 9, documents)], 0.2)
        near = draw.integers(0, documents, anchors)
        asked = near_to(texts[near], 0.05)
        pairs = {(anchor, int(near[anchor])) for anchor in range(anchors)}
        pairs |= {(int(draw.integers(anchors)), int(draw.integers(documents))) for _ in range(9)}

        def some(count: int) -> list[set[int]]:
            return [
                set(draw.integers(0, groups, draw.integers(0, 3)).tolist()) for _ in range(count)
            ]

        second = np.argsort(-(asked @ texts.T), axis=1, kind="stable")[:, 1]
        own = np.where(draw.random(anchors) < 0.5, second, -1).tolist()
        vectors = (some.astype(np.float32) / np.sqrt(np.float32(WIDTH)) for some in (asked, texts))
        return cls(*vectors, sorted(pairs), some(anchors), some(documents), own)

    def arrays(self) -> Anchors:
        """As the executors have them."""
        size = len(self.documents)
        numbers, positives = np.array(self.pairs).T
        # Those of this part are numbered from 0.
        _, numbers = np.unique(numbers, return_inverse=True)
        there = sorted({anchor for anchor, _ in self.pairs})
        groups = [sorted(self.anchor_groups[anchor]) for anchor in there]
        rows = [anchor for anchor, _ in self.pairs]
        vectors = self.anchors[rows]
        products = np.einsum("ij,ij->i", vectors, self.documents[positives])
        of_documents = [
            group * size + document
            for document, some in enumerate(self.document_groups)
            for group in some
        ]
        return Anchors(
            documents=size,
            ids=np.array([hash(pair) for pair in self.pairs], np.int64),
            vectors=vectors,
            positive_scores=np.round(products.astype(float), 6),
            numbers=numbers,
            own_documents=np.array(self.own)[rows],
            positives=np.unique(numbers * size + positives),
            group_starts=np.cumsum([0, *map(len, groups)]),
            groups=np.array([group for some in groups for group in some], np.int64),
            group_documents=np.sort(np.array(of_documents, np.int64)),
        )

    def left(self, row: int, settings: MiningSettings) -> tuple[list[tuple[float, int]], list[str]]:
        """The documents that pass the filters of a pair, the best first, and why others do not.

        Returns:
            Scores and documents; reasons of those that are dropped, with their scores in front.
        """
        anchor, positive = self.pairs[row]
        scores = np.round((self.documents @ self.anchors[anchor]).astype(float), 6)
        limit, near = np.inf, scores[positive]
        if settings.margin_positive == "lowest":
            near = min(scores[other] for some, other in self.pairs if some == anchor)
        if settings.relative_margin is not None:
            limit = near - settings.relative_margin * abs(near)
        if settings.absolute_margin is not None:
            limit = min(limit, near - settings.absolute_margin)
        found, dropped = [], []
        for document, score in enumerate(scores):
            if settings.min_score is not None and score < settings.min_score:
                continue
            if (anchor, document) in self.pairs:
                dropped.append((score, "known positive"))
            elif self.own[anchor] == document:
                dropped.append((score, "same text"))
            elif not settings.same_group and (
                self.anchor_groups[anchor] & self.document_groups[document]
            ):
                dropped.append((score, "same group"))
            elif settings.max_score is not None and score > settings.max_score:
                dropped.append((score, "above max_score"))
            elif score > limit:
                dropped.append((score, "too near the positive"))
            else:
                found.append((score, document))
        return sorted(found, key=lambda one: (-one[0], one[1])), sorted(dropped, reverse=True)


def rows_of(folder: Path | str) -> list[dict]:
    """The rows of a table of negatives, in its order."""
    files = sorted(Path(folder).glob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()


def bytes_of(folder: Path | str) -> dict[str, bytes]:
    """Its files."""
    return {file.name: file.read_bytes() for file in sorted(Path(folder).glob("part-*"))}
