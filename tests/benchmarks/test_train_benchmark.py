"""Trainers that make steps when they are told."""

import pytest
from small import small_config

from pipelines.benchmarks.train import Contender, _trainer
from pipelines.errors import PipelineError


def test_a_trainer_makes_the_steps_that_are_ordered(prepared):
    with _trainer(small_config(prepared), Contender("here", "tensorflow", "fp32")) as trainer:
        for steps in (3, 1, 2):
            trainer.order(steps)
            answer = trainer.answer()
            assert answer["steps"] == steps
            assert answer["cpu_seconds"] > 0
            assert answer["seconds"] > 0


def test_a_trainer_that_has_ended_is_named(tmp_path):
    nobody = Contender("nobody", "torch", "fp32")
    with (
        pytest.raises(PipelineError, match=r"the trainer nobody .* has ended"),
        _trainer(small_config(tmp_path), nobody) as trainer,
    ):
        trainer.order(1)
        trainer.answer()
