"""TensorFlow's side of training: gradients of a granule, and AdamW. Runs on an executor.

Plain variables and two graph functions, so that the same code runs alone, under
MultiWorkerMirroredStrategy and under any other exchange of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipelines.encoder.tensorflow import configure_threads, forward
from pipelines.lanes.files import Granule, Side
from pipelines.lanes.plan import noise_seed
from pipelines.objectives import OBJECTIVES
from pipelines.settings import TrainingSettings
from pipelines.training.checkpoint import Checkpoint
from pipelines.training.exchange import Exchange
from pipelines.training.feed import StepWork
from pipelines.training.run import WorkerTask

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8

_IDS = tf.TensorSpec([None, None], tf.int32)
_LENGTHS = tf.TensorSpec([None], tf.int32)
_SEED = tf.TensorSpec([2], tf.int32)
_VECTORS = tf.TensorSpec([None, None], tf.float32)
_SCORES = tf.TensorSpec([None], tf.float32)
_SCALAR = tf.TensorSpec([], tf.float32)


class TensorFlowStepper:
    """Makes optimiser updates; see :class:`pipelines.training.loop.Stepper`.

    Args:
        task: The worker's task.
        checkpoint: The state to begin with.
        exchange: How gradients are averaged between workers.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, exchange: Exchange) -> None:
        config = task.run.config
        self._spec = checkpoint.spec
        self._training = config.training
        self._exchange = exchange
        self._objective = OBJECTIVES[config.objective.name]
        self._loss = self._objective.loss("tensorflow")
        self._temperature = config.objective.temperature
        self._across_granules = (
            config.objective.negatives == "step" and self._objective.uses_negatives
        )
        self._weights = {
            name: tf.Variable(value, trainable=True, name=name)
            for name, value in checkpoint.weights.items()
        }
        self._moments = {
            f"{kind}/{name}": tf.Variable(
                checkpoint.moments.get(f"{kind}/{name}", np.zeros_like(value)), trainable=False
            )
            for kind in ("m", "v")
            for name, value in checkpoint.weights.items()
        }
        self._gradients = tf.function(
            self._gradients_of_granule,
            autograph=False,
            input_signature=[_IDS, _LENGTHS, _SEED, _IDS, _LENGTHS, _SEED, _SCORES],
        )
        self._embed = tf.function(
            self._forward, autograph=False, input_signature=[_IDS, _LENGTHS, _SEED]
        )
        self._embedding_gradients = tf.function(
            self._gradients_of_embeddings, autograph=False, input_signature=[_VECTORS, _VECTORS]
        )
        self._pull = tf.function(
            self._gradients_through,
            autograph=False,
            input_signature=[_IDS, _LENGTHS, _SEED, _VECTORS],
        )
        self._update = tf.function(self._apply, autograph=False)

    @staticmethod
    def prepare_process(settings: TrainingSettings) -> None:
        """Gives TensorFlow its threads, which it takes before its first operation only."""
        configure_threads(settings.threads)

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from this worker's granules; returns the loss over all workers."""
        compute = self._across if self._across_granules else self._within
        loss, gradients = compute(work)
        number = float(work.index + 1)
        mean_loss = self._update(
            gradients,
            loss,
            tf.constant(learning_rate, tf.float32),
            tf.constant(BETA_1**number, tf.float32),
            tf.constant(BETA_2**number, tf.float32),
        )
        return float(mean_loss)

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step, as numpy arrays."""
        return Checkpoint(
            step=step,
            spec=self._spec,
            weights={name: value.numpy() for name, value in self._weights.items()},
            moments={name: value.numpy() for name, value in self._moments.items()},
        )

    def _within(self, work: StepWork) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Loss and gradients with each granule's own negatives, meaned over the granules."""
        losses, sums = [], None
        for granule in work.granules:
            left, right, seeds = self._inputs(granule, work.epoch)
            scores = granule.scores
            loss, gradients = self._gradients(
                left.token_ids,
                left.lengths,
                seeds[0],
                right.token_ids,
                right.lengths,
                seeds[1],
                np.zeros(granule.examples, np.float32) if scores is None else scores,
            )
            losses.append(loss)
            sums = gradients if sums is None else _add(sums, gradients)
        assert sums is not None
        count = float(len(losses))
        if count == 1:
            return losses[0], sums
        return tf.add_n(losses) / count, [gradient / count for gradient in sums]

    def _across(self, work: StepWork) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Loss and gradients with the negatives of the whole step, one granule in memory.

        Two passes: embeddings without a tape, gathered over the workers; the loss's gradient on
        them; then each granule once more, pulling its part of that gradient through. Source:
        Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory
        Limited Setup", RepL4NLP 2021, arXiv:2101.06983.
        """
        inputs = [self._inputs(granule, work.epoch) for granule in work.granules]
        lefts = [self._embed(left.token_ids, left.lengths, seeds[0]) for left, _, seeds in inputs]
        rights = [
            self._embed(right.token_ids, right.lengths, seeds[1]) for _, right, seeds in inputs
        ]
        exchange = self._exchange
        loss, left_all, right_all = self._embedding_gradients(
            exchange.gather(tf.concat(lefts, 0)), exchange.gather(tf.concat(rights, 0))
        )
        own = sum(granule.examples for granule in work.granules)
        start, sums = exchange.rank * own, None
        for left, right, seeds in inputs:
            for side, seed, pull in ((left, seeds[0], left_all), (right, seeds[1], right_all)):
                count = len(side.lengths)
                gradients = self._pull(
                    side.token_ids, side.lengths, seed, pull[start : start + count]
                )
                sums = gradients if sums is None else _add(sums, gradients)
            start += len(left.lengths)
        assert sums is not None
        # Each worker holds its part of the sum, and the exchange gives the mean.
        return loss, [gradient * float(exchange.workers) for gradient in sums]

    def _inputs(self, granule: Granule, epoch: int) -> tuple[Side, Side, list[np.ndarray]]:
        """Both sides of a granule, and the seed of the noise on each."""
        right = granule.left if self._objective.needs == "singles" else granule.right
        assert right is not None, "the objective needs pairs"
        seed = self._training.seed
        seeds = [
            np.array(noise_seed(seed, epoch, granule.number, site), np.int32) for site in (0, 1)
        ]
        return granule.left, right, seeds

    def _forward(self, token_ids: tf.Tensor, lengths: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return forward(
            self._spec,
            self._weights,
            token_ids,
            lengths,
            precision=self._training.precision,
            dropout=self._training.dropout,
            seed=seed,
        )

    def _gradients_of_granule(
        self,
        left_ids: tf.Tensor,
        left_lengths: tf.Tensor,
        left_seed: tf.Tensor,
        right_ids: tf.Tensor,
        right_lengths: tf.Tensor,
        right_seed: tf.Tensor,
        scores: tf.Tensor,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            left = self._forward(left_ids, left_lengths, left_seed)
            right = self._forward(right_ids, right_lengths, right_seed)
            loss = self._loss(left, right, scores, self._temperature)
        return loss, _dense(tape.gradient(loss, self._weights), self._weights)

    def _gradients_of_embeddings(
        self, left: tf.Tensor, right: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([left, right])
            loss = self._loss(left, right, None, self._temperature)
        left_gradient, right_gradient = tape.gradient(loss, [left, right])
        return loss, left_gradient, right_gradient

    def _gradients_through(
        self, token_ids: tf.Tensor, lengths: tf.Tensor, seed: tf.Tensor, pull: tf.Tensor
    ) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            embeddings = self._forward(token_ids, lengths, seed)
        return _dense(
            tape.gradient(embeddings, self._weights, output_gradients=pull), self._weights
        )

    def _apply(
        self,
        gradients: list[tf.Tensor],
        loss: tf.Tensor,
        rate: tf.Tensor,
        beta_1_power: tf.Tensor,
        beta_2_power: tf.Tensor,
    ) -> tf.Tensor:
        """AdamW with clipping by the global norm, in the fused kernel; returns the mean loss.

        Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
        arXiv:1711.05101. Biases and layer norms are not decayed. The kernel adds epsilon before
        the bias correction of the second moment, so it is given epsilon times that correction,
        which makes the update the one of the paper.
        """
        *gradients, loss = self._exchange.mean([*gradients, loss])
        clip = self._training.clip_norm
        if clip:
            gradients, _ = tf.clip_by_global_norm(gradients, clip)
        decay = self._training.weight_decay
        for (name, weight), gradient in zip(self._weights.items(), gradients, strict=True):
            if decay and len(weight.shape) > 1:
                weight.assign_sub(weight * (rate * decay))
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle,
                m=self._moments[f"m/{name}"].handle,
                v=self._moments[f"v/{name}"].handle,
                beta1_power=beta_1_power,
                beta2_power=beta_2_power,
                lr=rate,
                beta1=BETA_1,
                beta2=BETA_2,
                epsilon=EPSILON * tf.sqrt(1 - beta_2_power),
                grad=gradient,
            )
        return loss


def _add(first: Sequence[tf.Tensor], second: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [a + b for a, b in zip(first, second, strict=True)]


def _dense(gradients: Mapping[str, Any], weights: Mapping[str, tf.Variable]) -> list[tf.Tensor]:
    """Gradients as dense tensors, zero for a weight that had no part in the loss."""
    return [
        tf.zeros_like(weights[name]) if gradient is None else tf.convert_to_tensor(gradient)
        for name, gradient in gradients.items()
    ]
