"""The compared strategies: those of a paper, and every mode and layout of each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from pipelines.catalog import ENGINES, LOSSES
from pipelines.compare.processes import stage_command
from pipelines.engines.base import engine_of, load_engine
from pipelines.errors import EngineUnavailable, InputError, PipelineError
from pipelines.models.architecture import check_framework
from pipelines.models.start import start_architecture
from pipelines.settings import Config

PAPER = "Bai 2022, arXiv:2206.06356"
"""Bai, "Modern Distributed Data-Parallel Large-Scale Pre-training Strategies For NLP models", HP3C
2022."""
MIXED = "-bf16"
"""Suffix of a strategy with matrix products in bf16 and weights in fp32."""
DEFAULT_WORKERS = (1, 2)
_BASE = {"mode": "sync", "sharding": "none", "precision": "fp32", "parameter_servers": 1}


GROUP = "sentence_pipelines.compare"
"""Entry points of other distributions for a comparison: mappings of names, ``peers`` to
:class:`Peer` and ``workloads`` to functions of settings and a folder, which return the settings of
the workload."""


def provided(kind: str) -> dict[str, Any]:
    """Return the `peers` or `workloads` of installed distributions, by name."""
    return {
        name: value
        for point in entry_points(group=GROUP, name=kind)
        for name, value in point.load().items()
    }


class Peer(Protocol):
    """Another library's own way to train."""

    @property
    def name(self) -> str:
        """Return its name on the command line and in tables."""

    @property
    def framework(self) -> str:
        """Return its framework: `tensorflow` or `torch`."""

    @property
    def missing(self) -> Callable[[Config, bool], str]:
        """Return a function of settings and hard negatives in the lanes; see `Strategy.missing`."""

    def command(self, config: Config, settings: Path) -> list[str]:
        """Write the settings to a file, and return the training command."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way to train.

    Attributes:
        name: On the command line and in tables.
        training: Its own keys of the section `training`.
        paper: Its name in :data:`PAPER`; empty without one.
        peer: Another library's own way to train, if it is one.
    """

    name: str
    training: Mapping[str, Any]
    paper: str = ""
    peer: Peer | None = None

    @property
    def is_peer(self) -> bool:
        """Return whether another library trains."""
        return self.peer is not None

    @property
    def is_alone(self) -> bool:
        """Return whether it has one worker only."""
        return bool(self.training["engine"] == "local") and not self.is_peer

    def configured(self, config: Config, workers: int) -> Config:
        """Return the settings of a training with that number of workers, each with one thread."""
        training = {**self.training, "workers": workers}
        return config.model_copy(update={"training": config.training.model_copy(update=training)})

    def command(self, config: Config, settings: Path) -> list[str]:
        """Write the settings of a training to a file, and return its command."""
        if self.peer is not None:
            return self.peer.command(config, settings)
        return stage_command("train", config, settings)

    def missing(self, config: Config, *, has_negatives: bool = False) -> str:
        """Return the reason against a measurement here; empty without one."""
        configured = self.configured(config, 1)
        if self.peer is not None:
            return self.peer.missing(configured, has_negatives)
        try:
            engine_of(configured).check_libraries(configured)
            LOSSES.load(configured.objective.name).form(configured.training.framework)
            check_framework(start_architecture(configured), configured)
        except PipelineError as error:
            return str(error)
        return ""


def _of_paper(paper: str, name: str, training: Mapping[str, Any]) -> Strategy:
    training = {**_BASE, "framework": "tensorflow", **training}
    return Strategy(name=name, training=training, paper=paper)


_ONE_SERVER = {"engine": "tensorflowonspark", "mode": "async"}
_SERVERS = _ONE_SERVER | {"parameter_servers": 2}
_HOROVOD = {"engine": "horovod"}
_BF16 = {"precision": "bf16"}
_MIXED_SERVERS = "distributed parameter server, mixed precision"
OF_PAPER = (
    _of_paper("single worker", "single-worker", {"engine": "local"}),
    _of_paper("single parameter server", "single-server", _ONE_SERVER),
    _of_paper("distributed parameter server", "distributed-servers", _SERVERS),
    _of_paper("Horovod", "horovod", _HOROVOD),
    _of_paper(_MIXED_SERVERS, f"distributed-servers{MIXED}", _SERVERS | _BF16),
    _of_paper("Horovod, mixed precision", f"horovod{MIXED}", _HOROVOD | _BF16),
)
"""The six of the paper, all with one framework, so that nothing else differs between them."""


def all_strategies() -> dict[str, Strategy]:
    """Return by name the paper's strategies, every way of each engine, and peers."""
    found = {strategy.name: strategy for strategy in OF_PAPER}
    for engine in ENGINES:
        for strategy in _of_engine(engine):
            if all(strategy.training != known.training for known in OF_PAPER):
                found[strategy.name] = strategy
    for name, peer in provided("peers").items():
        training = {**_BASE, "engine": "local", "framework": peer.framework}
        found[name] = Strategy(name=peer.name, training=training, peer=peer)
    return found


def _of_engine(name: str) -> Iterator[Strategy]:
    try:
        engine = load_engine(name)
    except EngineUnavailable:
        # `Strategy.missing` gives the reason in one line.
        yield Strategy(name=name, training={**_BASE, "engine": name})
        return
    choices = {
        "mode": tuple(engine.modes),
        "framework": engine.frameworks,
        "sharding": engine.shardings,
    }
    for values in product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        # What is no choice, and the absence of sharding, is left out of the name.
        parts = [
            value for key, value in chosen.items() if len(choices[key]) > 1 and value != "none"
        ]
        yield Strategy(name="-".join([name, *parts]), training={**_BASE, "engine": name, **chosen})


def named_strategies(names: str | None) -> list[Strategy]:
    """Return the strategies of a list with commas; all of them by default.

    The suffix ``-bf16`` stands for mixed precision.

    Raises:
        InputError: A name is unknown.
    """
    known = all_strategies()
    if names is None:
        return [*known.values()]
    return [_named(name, known) for name in dict.fromkeys(map(str.strip, names.split(",")))]


def _named(name: str, known: Mapping[str, Strategy]) -> Strategy:
    if name in known:
        return known[name]
    base = known.get(name.removesuffix(MIXED))
    if base is None:
        listed = ", ".join(known)
        raise InputError("--cases", f"there is no strategy `{name}`", f"Choose from {listed}")
    return replace(base, name=name, training={**base.training, "precision": "bf16"}, paper="")


def worker_counts(text: str | None) -> Sequence[int]:
    """Return the numbers of workers of a list with commas; 1 and 2 by default.

    Raises:
        InputError: A number is no whole number above 0.
    """
    if text is None:
        return DEFAULT_WORKERS
    counts = [part.strip() for part in text.split(",")]
    if not all(count.isdecimal() and int(count) for count in counts):
        raise InputError("--workers", f"`{text}` is no list of numbers", "Write it as in 1,2,4")
    return sorted({int(count) for count in counts})
