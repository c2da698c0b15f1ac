"""A framework in forty lines, so that the contract can be tested without any real one."""

import numpy as np

from pipelines.runs.checkpoint import Checkpoint

TABLE = "embeddings.word_embeddings.weight"
SCALE = 1000  # for vectors as short as those of a new table


class NumpyStepper:
    """Trains a mean of token embeddings with signed gradient descent on a dot-product InfoNCE."""

    sharded = False
    exchange_seconds = 0.0
    precision = "fp32"
    gradient_norm = None

    def __init__(self, task, checkpoint, collectives):
        self.checkpointed = checkpoint
        # The default temperature is one.
        self.scale = SCALE * 0.05 / task.run.config.objective.temperature
        self.table = checkpoint.weights[TABLE].copy()

    @staticmethod
    def prepare_process(settings):
        """Numpy needs nothing."""

    def step(self, work, learning_rate):
        losses, gradient = [], np.zeros_like(self.table)
        for granule in work.granules:
            anchor, positive = (
                mean_vectors(granule.anchor, self.table),
                mean_vectors(granule.positive, self.table),
            )
            scores = self.scale * (anchor @ positive.T)
            shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
            picked = shifted / shifted.sum(axis=1, keepdims=True)
            losses.append(-np.log(np.diag(picked)).mean())
            pull = self.scale * (picked - np.eye(len(picked))) / len(picked)
            scatter(gradient, granule.anchor, pull @ positive)
            scatter(gradient, granule.positive, pull.T @ anchor)
        self.table -= learning_rate * np.sign(gradient)
        return float(np.mean(losses))

    def load(self, checkpoint):
        self.table = checkpoint.weights[TABLE].copy()

    def checkpoint(self, step):
        weights = self.checkpointed.weights | {TABLE: self.table.copy()}
        return Checkpoint(step, self.checkpointed.spec, weights, {})


def shares(side):
    """How much each token counts in its text's mean; padding counts nothing."""
    width = side.token_ids.shape[1]
    return (np.arange(width) < side.lengths[:, None]) / side.lengths[:, None]


def mean_vectors(side, table):
    return np.einsum("kt,ktd->kd", shares(side), table[side.token_ids])


def scatter(gradient, side, pull):
    np.add.at(gradient, side.token_ids, shares(side)[:, :, None] * pull[:, None, :])
