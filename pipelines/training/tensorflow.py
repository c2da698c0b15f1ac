"""TensorFlow's side of training: gradients of a granule, and AdamW. Runs on an executor.

Plain variables and two graph functions, so that the same code runs alone, under
MultiWorkerMirroredStrategy and under any other exchange of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.encoder.tensorflow import configure_threads, forward
from pipelines.encoder.weights import Weights
from pipelines.lanes.files import Granule
from pipelines.lanes.plan import noise_seed
from pipelines.objectives import configured_loss, spans_steps
from pipelines.settings import TrainingSettings
from pipelines.training.adamw import BETA_1, BETA_2, EPSILON
from pipelines.training.checkpoint import Checkpoint
from pipelines.training.exchange import Exchange, Timed
from pipelines.training.feed import StepWork
from pipelines.training.precision import with_precision
from pipelines.training.run import WorkerTask


class _Texts(NamedTuple):
    """One side of a granule, as a graph function takes it.

    Attributes:
        token_ids: int32 [examples, width].
        lengths: int32 [examples].
        seed: int32 [2], of the noise on this side.
    """

    token_ids: Any
    lengths: Any
    seed: Any


_TEXTS = _Texts(
    tf.TensorSpec([None, None], tf.int32),
    tf.TensorSpec([None], tf.int32),
    tf.TensorSpec([2], tf.int32),
)
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

    sharded = False

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, exchange: Exchange) -> None:
        config = task.run.config
        self._spec = checkpoint.spec
        on_gpu = bool(tf.config.list_physical_devices("GPU"))
        self._training = with_precision(config.training, on_gpu=on_gpu)
        self._exchange = exchange
        self._timed = Timed(exchange)
        self._mean_seconds = 0.0
        self._on_gpu = on_gpu
        self._loss = configured_loss(config.objective, "tensorflow")
        self._sides = task.run.sides
        self._across_granules = spans_steps(config.objective)
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
            input_signature=[[_TEXTS] * len(self._sides), _SCORES],
        )
        self._embed = tf.function(self._forward, autograph=False, input_signature=[_TEXTS])
        self._embedding_gradients = tf.function(
            self._gradients_of_embeddings,
            autograph=False,
            input_signature=[[_VECTORS] * len(self._sides)],
        )
        self._pull = tf.function(
            self._gradients_through, autograph=False, input_signature=[_TEXTS, _VECTORS]
        )
        self._update = tf.function(self._apply, autograph=False)

    @staticmethod
    def prepare_process(settings: TrainingSettings) -> None:
        """Gives TensorFlow its threads, which it takes before its first operation only."""
        configure_threads(settings.threads)

    @property
    def exchange_seconds(self) -> float | None:
        """Seconds in the exchange so far; None on a GPU, which only queues what it is given."""
        return None if self._on_gpu else self._mean_seconds + self._timed.seconds

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from this worker's granules; returns the loss over all workers."""
        loss, gradients = self._loss_and_gradients(work)
        number = float(work.index + 1)
        mean_loss, seconds = self._update(
            gradients,
            loss,
            tf.constant(learning_rate, tf.float32),
            tf.constant(BETA_1**number, tf.float32),
            tf.constant(BETA_2**number, tf.float32),
        )
        self._mean_seconds += float(seconds)
        return float(mean_loss)

    def gradients(self, work: StepWork, weights: Weights) -> tuple[float, Weights]:
        """Loss and clipped gradients of this worker's granules at given weights."""
        for name, value in weights.items():
            self._weights[name].assign(value)
        loss, gradients = self._loss_and_gradients(work)
        if self._training.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._training.clip_norm)
        named = zip(self._weights, gradients, strict=True)
        return float(loss), {name: gradient.numpy() for name, gradient in named}

    def load(self, checkpoint: Checkpoint) -> None:
        """Takes another state, of the same shape."""
        for variables, values in (
            (self._weights, checkpoint.weights),
            (self._moments, checkpoint.moments),
        ):
            for name, value in values.items():
                variables[name].assign(value)

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step, as numpy arrays."""
        return Checkpoint(
            step=step,
            spec=self._spec,
            weights={name: value.numpy() for name, value in self._weights.items()},
            moments={name: value.numpy() for name, value in self._moments.items()},
        )

    def _loss_and_gradients(self, work: StepWork) -> tuple[tf.Tensor, list[tf.Tensor]]:
        return self._across(work) if self._across_granules else self._within(work)

    def _within(self, work: StepWork) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Loss and gradients with each granule's own negatives, meaned over the granules."""
        losses, sums = [], None
        for granule in work.granules:
            scores = granule.scores
            loss, gradients = self._gradients(
                self._inputs(granule, work.epoch),
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
        exchange = self._timed
        loss, pulls = self._embedding_gradients(
            [
                exchange.gather(tf.concat([self._embed(texts) for texts in side], 0))
                for side in zip(*inputs, strict=True)
            ]
        )
        own = sum(granule.examples for granule in work.granules)
        start, sums = exchange.rank * own, None
        for granule, sides in zip(work.granules, inputs, strict=True):
            end = start + granule.examples
            for texts, pull in zip(sides, pulls, strict=True):
                gradients = self._pull(texts, pull[start:end])
                sums = gradients if sums is None else _add(sums, gradients)
            start = end
        assert sums is not None
        # Each worker holds its part of the sum, and the exchange gives the mean.
        return loss, [gradient * float(exchange.workers) for gradient in sums]

    def _inputs(self, granule: Granule, epoch: int) -> list[_Texts]:
        """The sides of a granule that the objective embeds."""
        sides, seed = granule.sides, self._training.seed
        return [
            _Texts(
                sides[name].token_ids,
                sides[name].lengths,
                np.array(noise_seed(seed, epoch, granule.number, site), np.int32),
            )
            for site, name in enumerate(self._sides)
        ]

    def _forward(self, texts: _Texts) -> tf.Tensor:
        return forward(
            self._spec,
            self._weights,
            texts.token_ids,
            texts.lengths,
            precision=self._training.precision,
            dropout=self._training.dropout,
            seed=texts.seed,
        )

    def _gradients_of_granule(
        self, sides: Sequence[_Texts], scores: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            embeddings = [self._forward(texts) for texts in sides]
            loss = self._loss(embeddings, scores)
        return loss, _dense(tape.gradient(loss, self._weights), self._weights)

    def _gradients_of_embeddings(
        self, embeddings: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(embeddings)
            loss = self._loss(embeddings, None)
        return loss, tape.gradient(loss, embeddings)

    def _gradients_through(self, texts: _Texts, pull: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            embeddings = self._forward(texts)
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
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """AdamW with clipping by the global norm, in the fused kernel.

        Returns:
            The mean loss, and the seconds that the exchange took.

        Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
        arXiv:1711.05101. Biases and layer norms are not decayed. The kernel adds epsilon before
        the bias correction of the second moment, so it is given epsilon times that correction,
        which makes the update the one of the paper.
        """
        # The exchange is part of the graph, and so are the looks at the clock.
        began = tf.timestamp()
        with tf.control_dependencies([began]):
            *gradients, loss = self._exchange.mean([*gradients, loss])
        with tf.control_dependencies([*gradients, loss]):
            seconds = tf.timestamp() - began
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
        return loss, seconds


def _add(first: Sequence[tf.Tensor], second: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [a + b for a, b in zip(first, second, strict=True)]


def _dense(gradients: Mapping[str, Any], weights: Mapping[str, tf.Variable]) -> list[tf.Tensor]:
    """Gradients as dense tensors, zero for a weight that had no part in the loss."""
    return [
        tf.zeros_like(weights[name]) if gradient is None else tf.convert_to_tensor(gradient)
        for name, gradient in gradients.items()
    ]
