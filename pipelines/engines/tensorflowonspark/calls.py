"""What a worker asks of the parameter servers, as a TensorFlow graph. Runs on executors.

Every worker builds the same graph and runs it in a session of its own; the variables, which the
workers share, are on the servers. A variable is told by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from pipelines.engines.tensorflowonspark.shards import Shard
from pipelines.training.adamw import BETA_1, BETA_2, EPSILON

KINDS = ("weights", "m", "v")
_ops = tf.raw_ops


class _Variable:
    """A variable on a server, which TensorFlow may read and change while others do."""

    def __init__(self, name: str, server: int, dtype: Any, shape: Sequence[int] = ()) -> None:
        self.device = f"/job:ps/task:{server}/device:CPU:0"
        self._dtype = dtype
        with tf.device(self.device):
            self.handle = _ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)

    def read(self) -> Any:
        with tf.device(self.device):
            return _ops.ReadVariableOp(resource=self.handle, dtype=self._dtype)

    def write(self, value: Any) -> Any:
        with tf.device(self.device):
            return _ops.AssignVariableOp(resource=self.handle, value=value)

    def subtract(self, value: Any) -> Any:
        with tf.device(self.device):
            return _ops.AssignSubVariableOp(resource=self.handle, value=value)

    def count(self) -> Any:
        """Adds 1; the value with it, which no other count gives."""
        with tf.device(self.device):
            before = _ops.ResourceCountUpTo(resource=self.handle, limit=2**62, T=self._dtype)
            return before + 1


class Calls:
    """The graph: what can be fed to it, and what can be fetched from it.

    Attributes:
        graph: The graph.
        pieces: Fed: the pieces of a vector, fp32.
        step: Fed: a step, int64.
        rate: Fed: the learning rate, fp32.
        next_steps: Fed: for each rank its first step, int64 [workers].
        write: Stores the fed pieces, by kind: ``weights``, ``m``, ``v``.
        read: The stored pieces, by kind.
        begin: Sets the counters to the fed step and ``next_steps``; the servers are ready then.
        is_ready: Whether ``begin`` has run.
        pull: How many updates have been made, and the pieces of the weights with at least these.
        push: Makes the update of the fed step; how many there are with it.
        progress: The first step of any rank that is to be made, and the newest one saved.
        mark_saved: Sets the newest step saved to the fed one.

    Args:
        shards: Where the pieces are.
        workers: Number of workers.
        device: The worker's own.
        weight_decay: Decoupled.
    """

    def __init__(
        self, shards: Sequence[Shard], workers: int, device: str, weight_decay: float
    ) -> None:
        self._shards = shards
        self._workers = workers
        self._device = device
        self._weight_decay = weight_decay
        self.graph = tf.Graph()
        with self.graph.as_default():
            self._inputs()
            self._variables()
            self.write = {
                kind: tf.group(*map(_Variable.write, self._stored[kind], self.pieces))
                for kind in KINDS
            }
            self.read = {kind: self._here(self._stored[kind]) for kind in KINDS}
            self.begin = self._begin()
            self.is_ready = self._is_ready()
            self.pull = self._pull()
            self.push = self._push()
            self.progress = self._progress()
            self.mark_saved = self._saved.write(self.step)
        self.graph.finalize()

    def _inputs(self) -> None:
        placeholder = tf.compat.v1.placeholder
        # On the worker's device, from which TensorFlow sends large tensors faster than it feeds.
        with tf.device(self._device):
            self.pieces = [
                placeholder(tf.float32, [shard.stop - shard.start]) for shard in self._shards
            ]
            self.step = placeholder(tf.int64, [])
            self.rate = placeholder(tf.float32, [])
            self.next_steps = placeholder(tf.int64, [self._workers])

    def _variables(self) -> None:
        self._stored = {
            kind: [
                _Variable(f"{kind}-{number}", shard.server, tf.float32, [shard.stop - shard.start])
                for number, shard in enumerate(self._shards)
            ]
            for kind in KINDS
        }
        # Updates that have begun, and those that have been made: the first numbers an update,
        # the second tells how old weights are. With one counter for both, weights without an
        # update could pass for weights with it.
        self._begun = _Variable("begun", 0, tf.int64)
        self._made = _Variable("made", 0, tf.int64)
        self._saved = _Variable("saved", 0, tf.int64)
        self._next = _Variable("next", 0, tf.int64, [self._workers])

    def _here(self, variables: Sequence[_Variable]) -> list[Any]:
        values = [variable.read() for variable in variables]
        with tf.device(self._device):
            return [tf.identity(value) for value in values]

    def _begin(self) -> Any:
        counters = [v.write(self.step) for v in (self._begun, self._made, self._saved)]
        # The last one, since it is what others ask for.
        with tf.control_dependencies(counters):
            return self._next.write(self.next_steps)

    def _is_ready(self) -> Any:
        with tf.device(self._next.device):
            return _ops.VarIsInitializedOp(resource=self._next.handle)

    def _pull(self) -> tuple[Any, list[Any]]:
        made = self._made.read()
        with tf.control_dependencies([made]):
            return made, self._here(self._stored["weights"])

    def _push(self) -> Any:
        """AdamW, as :class:`pipelines.training.tensorflow.TensorFlowStepper` makes it.

        The gradients are clipped already.
        """
        with tf.device(self._begun.device):
            number = tf.cast(self._begun.count(), tf.float64)
            powers = [
                tf.cast(tf.pow(tf.constant(beta, tf.float64), number), tf.float32)
                for beta in (BETA_1, BETA_2)
            ]
        updates = [
            self._update(shard, weights, m, v, gradient, powers)
            for shard, weights, m, v, gradient in zip(
                self._shards,
                self._stored["weights"],
                self._stored["m"],
                self._stored["v"],
                self.pieces,
                strict=True,
            )
        ]
        with tf.control_dependencies(updates):
            made = self._made.count()
        with tf.control_dependencies([made]), tf.device(self._next.device):
            # The rank that the step belongs to, whichever worker has made it.
            marked = _ops.ResourceScatterUpdate(
                resource=self._next.handle,
                indices=self.step % self._workers,
                updates=self.step + self._workers,
            )
            with tf.control_dependencies([marked]):
                return tf.identity(made)

    def _update(
        self,
        shard: Shard,
        weights: _Variable,
        m: _Variable,
        v: _Variable,
        gradient: Any,
        powers: Sequence[Any],
    ) -> Any:
        """The update of one piece, where it is."""
        beta_1_power, beta_2_power = powers
        with tf.device(weights.device):
            before: AbstractContextManager[Any] = nullcontext()
            if shard.decayed and self._weight_decay:
                decay = weights.read() * (self.rate * self._weight_decay)
                before = tf.control_dependencies([weights.subtract(decay)])
            with before:
                return _ops.ResourceApplyAdam(
                    var=weights.handle,
                    m=m.handle,
                    v=v.handle,
                    beta1_power=beta_1_power,
                    beta2_power=beta_2_power,
                    lr=self.rate,
                    beta1=BETA_1,
                    beta2=BETA_2,
                    epsilon=EPSILON * tf.sqrt(1 - beta_2_power),
                    grad=gradient,
                    use_locking=True,
                )

    def _progress(self) -> tuple[Any, Any]:
        with tf.device(self._next.device):
            return tf.reduce_min(self._next.read()), self._saved.read()
