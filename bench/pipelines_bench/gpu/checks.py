"""The checks by name, what they are given and what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pipelines.catalog import ARCHITECTURES
from pipelines_bench.gpu.rank_ways import ALONE, SEVERAL

Status = Literal["ok", "failed", "skipped"]


class SkippedError(RuntimeError):
    """What a check needs is not on this machine."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how the checks run.

    Attributes:
        device: ``cuda:0``, or ``cpu``, which is then compared with itself.
        folder: For files on the way; empty.
        short: Whether all is as small and as short as can be.
    """

    device: str
    folder: Path
    short: bool

    @property
    def on_gpu(self) -> bool:
        """Whether there is something to compare the CPU with."""
        return self.device != "cpu"


@dataclass(frozen=True)
class Finding:
    """What a check found, if it did not fail.

    Attributes:
        told: In a line.
        figures: Numbers by name, for the file.
    """

    told: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the result.

    Attributes:
        name: In the result.
        function: `module:function` beside this module, which takes a :class:`Place` and the
            arguments, gives a :class:`Finding`, and raises if something is wrong.
        arguments: Of the function.
        correctness: Whether a failure makes the whole fail.
        short: Whether it is a part of the short form too.
    """

    name: str
    function: str
    arguments: tuple[Any, ...] = ()
    correctness: bool = True
    short: bool = False

    def run(self, place: Place) -> Finding:
        """Makes the check."""
        module, _, name = self.function.partition(":")
        function: Callable[..., Finding] = getattr(
            import_module(f"pipelines_bench.gpu.{module}"), name
        )
        return function(place, *self.arguments)


def _by_argument(
    name: str, function: str, arguments: tuple[str, ...], short: tuple[str, ...] = ()
) -> Iterator[Check]:
    """One check for each of some arguments, of which few are a part of the short form."""
    for one in arguments:
        yield Check(name=f"{name}: {one}", function=function, arguments=(one,), short=one in short)


LIBRARY_MODELS = ("modernbert", "qwen3", "gpt2")
"""Of `transformers`: an encoder, a decoder, and one with dropout of its own."""
STEPS = (
    "plain",
    "bf16",
    "negatives of the step",
    "micro-batches",
    "average of weights",
    "lora",
    "static",
    "mlm",
    "tsdae",
    "retromae",
)
SHAPES = ("MiniLM", "BERT-base")

CHECKS: tuple[Check, ...] = (
    *_by_argument(
        "encoder",
        "torch_encoders:encoder",
        tuple(kind for kind in ARCHITECTURES if kind != "hf"),
        short=("mpnet", "static"),
    ),
    *_by_argument("encoder of transformers", "torch_encoders:library_encoder", LIBRARY_MODELS),
    *_by_argument(
        "pooling",
        "torch_encoders:pooling",
        ("mean", "cls", "lasttoken", "weightedmean"),
        short=("mean",),
    ),
    Check(name="texts without padding", function="torch_encoders:packed", short=True),
    Check(name="dropout", function="torch_encoders:dropout", short=True),
    Check(name="forms of attention", function="torch_attention:agree", short=True),
    Check(name="losses", function="torch_losses:losses", short=True),
    Check(name="precision: auto", function="torch_encoders:automatic_precision", short=True),
    *_by_argument("steps", "torch_steps:steps", STEPS, short=("plain", "micro-batches")),
    Check(name="steps under dropout", function="torch_steps:under_dropout", short=True),
    Check(name="packed granules", function="torch_steps:packed", short=True),
    Check(name="compiled layers", function="torch_steps:compiled_layers"),
    Check(name="engine local", function="runs:local_engine", short=True),
    Check(name="checkpoint and resume", function="runs:resumed"),
    *_by_argument("a worker of a task, one rank", "ranks:of_task", tuple(ALONE)),
    *_by_argument("ranks on one device", "ranks:several_ranks", tuple(SEVERAL)),
    Check(name="embedding", function="inference:embedding", short=True),
    Check(name="evaluation", function="inference:evaluation", short=True),
    Check(name="TensorFlow's memory", function="tensorflow_memory:memory"),
    Check(
        name="peak of matrix products",
        function="torch_peak:peak",
        correctness=False,
        short=True,
    ),
    *(
        Check(
            name=f"training: {shape}",
            function="torch_figures:training",
            arguments=(shape,),
            correctness=False,
            short=shape == "MiniLM",
        )
        for shape in SHAPES
    ),
    *(
        Check(
            name=f"{what}: {shape}",
            function=function,
            arguments=(shape,),
            correctness=False,
        )
        for shape in SHAPES
        for what, function in (
            ("embedding", "torch_figures:embedding"),
            ("attention alone", "torch_attention:times"),
            ("sentence-transformers", "torch_library:figures"),
        )
    ),
    *(
        Check(
            name=f"training, compiled: {shape}",
            function="torch_figures:compiled_training",
            arguments=(shape,),
            correctness=False,
        )
        for shape in SHAPES
    ),
)
"""In the order in which they run: what must be right comes before what is measured."""


@contextmanager
def needing(package: str) -> Iterator[None]:
    """While a package is imported that not every machine has.

    Raises:
        SkippedError: It is not there, or something that it needs.
    """
    try:
        yield
    except ImportError as error:
        raise SkippedError(f"{package} cannot be imported: {error}") from error
