"""What the step loops of workers call to reach the parameter server. Runs on an executor."""

from __future__ import annotations

import time

from pipelines.models.weights import Weights
from pipelines.runs.run import WorkerTask
from pipelines.training.asynchronous import Progress
from pipelines.training.parameter_server.client import Client
from pipelines.training.parameter_server.messages import Request

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05


class ServedParameters:
    """See :class:`pipelines.training.asynchronous.Parameters`."""

    def __init__(self, client: Client, task: WorkerTask) -> None:
        self._client = client
        self._rank = task.rank

    def pull(self) -> tuple[Weights, int]:
        """The weights as they are now, and how many updates they have had."""
        header, weights = self._client.ask("parameters", Request())
        assert weights is not None, "the server has them from the start"
        return weights, header.updates

    def push(self, step: int, gradients: Weights, learning_rate: float) -> int:
        """Requests an update; returns how many the weights have had, this one included."""
        request = Request(step=step, rank=self._rank, amount=learning_rate)
        return self._client.ask("update", request, gradients)[0].updates

    def progress(self) -> Progress:
        """The progress of the run."""
        header, _ = self._client.ask("progress", Request())
        return Progress(applied=header.updates, saved=header.saved)

    def state(self) -> tuple[Weights, Weights]:
        """Weights, and the optimiser's arrays as a checkpoint holds them."""
        _, state = self._client.ask("state", Request())
        assert state is not None, "the server has it from the start"
        weights = {
            name.removeprefix("weights/"): value
            for name, value in state.items()
            if name.startswith("weights/")
        }
        moments = {name: value for name, value in state.items() if not name.startswith("weights/")}
        return weights, moments

    def mark_saved(self, step: int) -> None:
        """Lets the others go on from a step whose state has been saved."""
        self._client.ask("saved", Request(step=step))


class ServedRounds:
    """See :class:`pipelines.training.rounds.Rounds`."""

    def __init__(self, client: Client, task: WorkerTask) -> None:
        self._client = client
        self._rank = task.rank
        training = task.run.config.training
        # The slowest worker may take stall_seconds for each step of the round.
        self._seconds = training.stall_seconds * training.round_steps

    def pull(self, step: int) -> Weights:
        """The state before a step that begins a round.

        Raises:
            TimeoutError: Not all workers have added to it in the time that a round may take.
        """
        deadline, pause = time.monotonic() + self._seconds, _FIRST_PAUSE
        while True:
            _, state = self._client.ask("parameters", Request(step=step, rank=self._rank))
            if state is not None:
                return state
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"waited {self._seconds} s (training.stall_seconds for each of"
                    f" training.round_steps) for the round before step {step}"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def push(self, step: int, deltas: Weights, granules: int) -> None:
        """Adds what was subtracted from the state up to a step, by how many granules."""
        request = Request(step=step, rank=self._rank, amount=float(granules))
        self._client.ask("update", request, deltas)
