"""Embeddings as places on a map."""

from __future__ import annotations

import numpy as np

from pipelines.evaluation.embedder import unit_length
from pipelines.libraries import left_out

PERPLEXITY = 15.0
"""About how many neighbours of a text decide its place."""
_SPREAD = 1e-6


def place_on_map(embeddings: np.ndarray, seed: int) -> np.ndarray:
    """Places on a plane that keep neighbours by cosine together; long distances mean nothing.

    Source: van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 9, 2008, begun from
    the principal components.

    Args:
        embeddings: [texts, width].
        seed: The same one gives the same map.

    Returns:
        [texts, 2], between -1 and 1, the middle at 0. All in the middle where the embeddings are
        one, are no numbers, or are too few for a map, and without scikit-learn.
    """
    vectors = unit_length(embeddings)
    if (
        len(vectors) < 4
        or not np.isfinite(vectors).all()
        or np.ptp(vectors, axis=0).max() < _SPREAD
    ):
        return np.zeros((len(vectors), 2))
    if left_out("the map of the report is", ["sklearn"]):
        return np.zeros((len(vectors), 2))
    from sklearn.manifold import TSNE

    # The exact method: the sums of the other one depend on the number of processors.
    projection = TSNE(
        init="pca",
        method="exact",
        perplexity=min(PERPLEXITY, (len(vectors) - 1) / 3),
        random_state=seed,
    )
    return _centred(projection.fit_transform(vectors.astype(np.float64)))


def turned_onto(places: np.ndarray, others: np.ndarray) -> np.ndarray:
    """A map rotated or mirrored to match another one of the same texts as well as possible.

    Source: Schönemann, "A generalized solution of the orthogonal Procrustes problem",
    Psychometrika 31, 1966.

    Args:
        places: [texts, 2], from :func:`place_on_map`.
        others: The same of the other map.
    """
    from scipy.linalg import orthogonal_procrustes

    turn, _ = orthogonal_procrustes(places, others)
    return _centred(places @ turn)


def _centred(places: np.ndarray) -> np.ndarray:
    """The same places, centred and scaled to a square from -1 to 1."""
    middle = (places.max(axis=0) + places.min(axis=0)) / 2
    reach = np.abs(places - middle).max()
    scaled: np.ndarray = (places - middle) / max(reach, 1e-12)
    return scaled
