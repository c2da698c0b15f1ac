"""TensorFlow's side of training: gradients of a granule, and AdamW. Runs on executors.

Plain variables and two graph functions, so the same code runs alone and under any exchange of
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipelines.lanes.files import Granule
from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.losses.candidates import Picks
from pipelines.models.adaptation import effective
from pipelines.models.frameworks.tensorflow import configure_threads, forward, limit_gpus
from pipelines.models.inference.processor import BF16_CAPABILITY, computes_in_bf16
from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import AVERAGE, Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import Collectives, TimedCollectives
from pipelines.training.devices import own_device, with_precision
from pipelines.training.steppers.base import (
    GradientStepper,
    LoadableStepper,
    StepperFactory,
    StepWork,
    granule_texts,
    moments_of,
)
from pipelines.training.steppers.numpy_adamw import BETA_1, BETA_2, EPSILON, newest_share
from pipelines.training.steppers.objectives import (
    LossOf,
    Objective,
    objectives,
    pulls_on_embeddings,
)

VECTORS = tf.TensorSpec([None, None], tf.float32)
_SCORES = {
    "scores": tf.TensorSpec([None], tf.float32),
    "candidate_scores": tf.TensorSpec([None, None], tf.float32),
}
_OWN, _EXCLUDED = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2], tf.int64)


def pick_specs(objective: Objective) -> Picks:
    """Return the tensor specifications of the anchors' picks."""
    return Picks(_OWN, _EXCLUDED, _vectors(objective) if objective.settings.uses_teacher else [])


def target_specs(objective: Objective) -> Any:
    """Return the specifications of a granule's :class:`~pipelines.losses.candidates.Targets`."""
    compared = {**_SCORES, "teacher": _vectors(objective)}
    return compared.get(objective.needs, pick_specs(objective))


def _vectors(objective: Objective) -> list[tf.TensorSpec]:
    return [VECTORS] * len(objective.sides)


class _Texts(NamedTuple):
    """One side of a granule for a graph function, with the int32 [2] seed of its noise.

    The token ids are int32 [examples, width], the lengths int32 [examples].
    """

    token_ids: Any
    lengths: Any
    seed: Any


_TEXTS = _Texts(
    tf.TensorSpec([None, None], tf.int32),
    tf.TensorSpec([None], tf.int32),
    tf.TensorSpec([2], tf.int32),
)
_SCALAR = tf.TensorSpec([], tf.float32)


def _scalar(number: float) -> Any:
    """Return a tensor of a number with a new value in each step.

    TensorFlow keeps every tensor of a Python number (560 bytes each, in the cache of
    ``convert_to_eager_tensor``) for the life of the process, but none of numpy's numbers.
    """
    # A rate beyond single precision becomes infinite; the check of the resulting state reports it.
    with np.errstate(over="ignore"):
        return tf.constant(np.float32(number))


class _Functions(NamedTuple):
    """The graph functions of a source's objective.

    `gradients` are of the weights, on a granule; for `embedding_gradients` see
    :data:`.objectives.GradientsOf`.
    """

    objective: Objective
    gradients: Any
    embedding_gradients: Any


class TensorFlowStepper:
    """Makes optimiser updates; see :mod:`pipelines.training.steppers.base`.

    `checkpoint` is the state to begin with; `collectives` average gradients between workers.
    """

    sharded = False

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        config = task.run.config
        self._spec = checkpoint.spec
        gpus = tf.config.get_visible_devices("GPU")
        self._training = with_precision(config.training, collectives, has_bf16=_have_bf16(gpus))
        self.precision = self._training.precision
        self._collectives = collectives
        self._timed = TimedCollectives(collectives)
        self._mean_seconds = 0.0
        self.gradient_norm: float | None = None
        self._on_gpu = bool(gpus)
        self._weights = {
            name: tf.Variable(value, trainable=True, name=name)
            for name, value in checkpoint.weights.items()
        }
        # Variables, since constants would become a part of the graph.
        self._frozen = {
            name: tf.Variable(value, trainable=False, name=name)
            for name, value in checkpoint.frozen.weights.items()
        }
        self._scale = checkpoint.frozen.scale
        moments = moments_of(checkpoint, averaged=self._training.ema is not None)
        self._moments = {key: tf.Variable(value, trainable=False) for key, value in moments}
        self._compiled = tuple(map(self._functions, objectives(task.run, "tensorflow")))
        self._embed = tf.function(self._forward, autograph=False, input_signature=[_TEXTS])
        self._pull = tf.function(
            self._gradients_through, autograph=False, input_signature=[_TEXTS, VECTORS]
        )
        self._update = tf.function(self._apply, autograph=False)

    def _functions(self, objective: Objective) -> _Functions:
        sides = len(objective.sides)
        # With signatures, since TensorFlow would trace again for each new shape.
        return _Functions(
            objective,
            tf.function(
                partial(self._gradients_of_granule, objective.loss),
                autograph=False,
                input_signature=[[_TEXTS] * sides, target_specs(objective)],
            ),
            tf.function(
                partial(self._gradients_of_embeddings, objective.loss),
                autograph=False,
                input_signature=[[VECTORS] * sides, pick_specs(objective), _SCALAR],
            ),
        )

    @staticmethod
    def prepare_process(settings: TrainingSettings) -> None:
        """Set TensorFlow's threads and its GPU, before its first operation."""
        configure_threads(settings.threads)
        if tf.config.list_physical_devices("GPU"):
            limit_gpus(own_device())

    @property
    def exchange_seconds(self) -> float | None:
        """Seconds spent in exchanges; None on a GPU, since it only queues them."""
        return None if self._on_gpu else self._mean_seconds + self._timed.seconds

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Make one update from this worker's granules; return the loss over all workers."""
        loss, gradients = self._loss_and_gradients(work)
        number = float(work.index + 1)
        mean_loss, norm, seconds = self._update(
            gradients,
            loss,
            _scalar(learning_rate),
            _scalar(BETA_1**number),
            _scalar(BETA_2**number),
            _scalar(newest_share(self._training.ema or 0.0, work.index + 1)),
        )
        self._mean_seconds += float(seconds)
        self.gradient_norm = float(norm)
        return float(mean_loss)

    def gradients(self, work: StepWork, weights: Weights) -> tuple[float, Weights]:
        """Return loss and clipped gradients of this worker's granules at given weights."""
        _assign(self._weights, weights)
        loss, gradients = self._loss_and_gradients(work)
        gradients, norm = self._clipped(gradients)
        self.gradient_norm = float(norm)
        named = zip(self._weights, gradients, strict=True)
        return float(loss), {name: gradient.numpy() for name, gradient in named}

    def load(self, checkpoint: Checkpoint) -> None:
        """Take another state, of the same shape."""
        _assign(self._weights, checkpoint.weights)
        _assign(self._moments, checkpoint.moments)

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the state before a step, as numpy arrays."""
        return Checkpoint(
            step=step,
            spec=self._spec,
            weights={name: value.numpy() for name, value in self._weights.items()},
            moments={name: value.numpy() for name, value in self._moments.items()},
        )

    def _loss_and_gradients(self, work: StepWork) -> tuple[tf.Tensor, list[tf.Tensor]]:
        compiled = self._compiled[work.source]
        make = self._across if compiled.objective.across_granules else self._within
        return make(work, compiled)

    def _within(self, work: StepWork, compiled: _Functions) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return mean loss and gradients, with each granule's own negatives."""
        losses, sums = [], None
        for granule in work.granules:
            loss, gradients = compiled.gradients(
                self._inputs(granule, compiled.objective, work.noise_epoch),
                compiled.objective.targets(granule),
            )
            losses.append(loss)
            sums = gradients if sums is None else _add(sums, gradients)
        assert sums is not None
        count = float(len(losses))
        if count == 1:
            return losses[0], sums
        return tf.add_n(losses) / count, [gradient / count for gradient in sums]

    def _across(self, work: StepWork, compiled: _Functions) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return loss and gradients with the step's negatives, one granule in memory.

        Embeds without a tape, takes the loss's gradient on the embeddings (see :mod:`.objectives`),
        then embeds each granule once more and pulls its part of that gradient through.
        """
        objective = compiled.objective
        candidates = objective.candidates(work.granules, self._timed)
        inputs = [self._inputs(granule, objective, work.noise_epoch) for granule in work.granules]
        loss, pulls = pulls_on_embeddings(
            [
                tf.concat([self._embed(texts) for texts in side], 0)
                for side in zip(*inputs, strict=True)
            ],
            candidates,
            self._timed,
            compiled.embedding_gradients,
            partial(tf.concat, axis=0),
        )
        start, sums = 0, None
        for granule, sides in zip(work.granules, inputs, strict=True):
            end = start + granule.examples
            for texts, pull in zip(sides, pulls, strict=True):
                gradients = self._pull(texts, pull[start:end])
                sums = gradients if sums is None else _add(sums, gradients)
            start = end
        assert sums is not None
        return loss, sums

    def _inputs(self, granule: Granule, objective: Objective, epoch: int) -> list[_Texts]:
        return [
            _Texts(side.token_ids, side.lengths, np.array(side.seed, np.int32))
            for side in granule_texts(granule, objective.sides, self._training.seed, epoch)
        ]

    def _forward(self, texts: _Texts) -> tf.Tensor:
        """Return embeddings, of length 1."""
        embeddings = forward(
            self._spec,
            effective(self._weights, self._frozen, self._scale),
            texts.token_ids,
            texts.lengths,
            precision=self._training.precision,
            dropout=self._training.dropout,
            seed=texts.seed,
        )
        return tf.math.l2_normalize(embeddings, axis=-1)

    def _gradients_of_granule(
        self, loss_of: LossOf, sides: Sequence[_Texts], targets: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            embeddings = [self._forward(texts) for texts in sides]
            loss = loss_of(embeddings, targets)
        return loss, _dense(tape.gradient(loss, self._weights), self._weights)

    def _gradients_of_embeddings(
        self, loss_of: LossOf, embeddings: Sequence[tf.Tensor], picks: Picks, share: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """See :data:`.objectives.GradientsOf`."""
        with tf.GradientTape() as tape:
            tape.watch(embeddings)
            loss = loss_of(embeddings, picks) * share
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
        share: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Update by AdamW with clipping by the global norm, in the fused kernel.

        Returns the mean loss, the norm before clipping, and the seconds of the all-reduce.

        Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
        arXiv:1711.05101. Biases and layer norms do not decay. The kernel adds epsilon before the
        bias correction of the second moment. Epsilon times that correction as its argument gives
        the paper's update.
        """
        # The all-reduce is part of the graph, so the clock has to be read in the graph too.
        began = tf.timestamp()
        with tf.control_dependencies([began]):
            *gradients, loss = self._collectives.all_reduce_mean([*gradients, loss])
        with tf.control_dependencies([*gradients, loss]):
            seconds = tf.timestamp() - began
        gradients, norm = self._clipped(gradients)
        decay = self._training.weight_decay
        for (name, weight), gradient in zip(self._weights.items(), gradients, strict=True):
            # The kernel has no weight decay.
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
            if self._training.ema is not None:
                average = self._moments[f"{AVERAGE}/{name}"]
                average.assign_add((weight - average) * share)
        return loss, norm, seconds

    def _clipped(self, gradients: list[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return gradients, clipped by their global norm if configured, and that norm."""
        norm, clip = tf.linalg.global_norm(gradients), self._training.clip_norm
        if clip:
            gradients, _ = tf.clip_by_global_norm(gradients, clip, use_norm=norm)
        return gradients, norm


def _have_bf16(gpus: Sequence[Any]) -> bool:
    if not gpus:
        return computes_in_bf16()
    details = map(tf.config.experimental.get_device_details, gpus)
    return all(gpu.get("compute_capability", (0, 0)) >= BF16_CAPABILITY for gpu in details)


def _assign(variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray]) -> None:
    for name, value in values.items():
        variables[name].assign(value)


def _add(first: Sequence[tf.Tensor], second: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [a + b for a, b in zip(first, second, strict=True)]


def _dense(gradients: Mapping[str, Any], weights: Mapping[str, tf.Variable]) -> list[tf.Tensor]:
    """Return gradients as dense tensors, zero for a weight without a part in the loss."""
    # The gradient of a lookup in the word embedding arrives as `IndexedSlices`.
    return [
        tf.zeros_like(weights[name]) if gradient is None else tf.convert_to_tensor(gradient)
        for name, gradient in gradients.items()
    ]


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_rounds: StepperFactory[LoadableStepper] = TensorFlowStepper
    _for_gradients: StepperFactory[GradientStepper] = TensorFlowStepper
