"""The command: measures strategies on several hosts, and what slow links make of them.

A strategy is measured twice on the same hosts, once with the links as they are and once with slow
ones. The load comes from the first, so that what is checked is what the network does; the cores of
the machine are shared by all hosts both times.
"""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from corpus_factory import small_config, write_docstrings
from faults.job import CLI
from faults.network import limited
from host_cluster import HostCluster, host_cluster
from hosts import end, port_of, why_not

import pipelines
from pipelines.compare.prediction import Evidence, Network, load_of, predicted_rate, scheme_of
from pipelines.compare.processes import Usage
from pipelines.compare.strategy import Strategy, named_strategies
from pipelines.compare.trial import Reading, read_trial, settled_step
from pipelines.engines.base import load_engine
from pipelines.lanes.files import LaneManifest
from pipelines.settings import Config
from pipelines.settings import load as configuration

CASES = "torch,torch-parameters,horovod-torch,single-server,distributed-servers,elephas-sync"
STEPS = 40
MEGABITS = 200
BURST = "burst 128kb latency 100ms"
LATENCY = 1e-4
DEADLINE_SECONDS = 600.0
RESULTS = Path("docs/measurements/scale.jsonl")


@dataclass(frozen=True)
class Checked:
    """A prediction, and what came.

    Attributes:
        strategy: Its name.
        workers: How many, each on a host of its own.
        megabits: Of each host's link, per second and direction.
        fast: Examples per second where the links are as they are.
        measured: The same with slow links.
        predicted: By the simulation, from the load of the first.
    """

    strategy: str
    workers: int
    megabits: int
    fast: float
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted / self.measured - 1


def main(
    cases: Annotated[str, typer.Option(help="Strategies, with commas.")] = CASES,
    workers: Annotated[list[int], typer.Option(help="Numbers of hosts with a worker.")] = (2, 4),
    megabits: Annotated[int, typer.Option(help="Of a slow link, per second.")] = MEGABITS,
    results: Annotated[Path, typer.Option(help="A line for each check.")] = RESULTS,
) -> None:
    """Compares the simulation with hosts of namespaces; needs root."""
    if reason := why_not():
        raise typer.BadParameter(reason)
    with tempfile.TemporaryDirectory(prefix="scaling-") as name:
        prepared = Path(name, "prepared")
        prepared.mkdir()
        write_docstrings(prepared.parent / "docstrings.jsonl")
        pipelines.prepare(check_config(prepared, 4))
        for count in workers:
            for strategy in named_strategies(cases):
                work = Path(name, f"{strategy.name}-{count}")
                work.mkdir()
                checked = check(strategy, count, megabits, prepared, work)
                with results.open("a") as file:
                    file.write(json.dumps(asdict(checked)) + "\n")
                print(
                    f"{checked.strategy}, {count} workers: {checked.fast:.1f} examples/s, "
                    f"{megabits} Mbit/s {checked.measured:.1f}, predicted {checked.predicted:.1f}"
                    f" ({100 * checked.error:+.0f} %)",
                    flush=True,
                )


def check_config(prepared: Path, workers: int) -> Config:
    """A training of which the network is no small part."""
    config = small_config(prepared, granules_per_step=workers, max_steps=STEPS, epochs=10**6)
    shape = {"layers": 2, "hidden": 256, "heads": 4, "intermediate": 1024}
    lanes = config.lanes.model_copy(update={"granule": 32})
    encoder = config.encoder.model_copy(update=shape)
    return config.model_copy(update={"encoder": encoder, "lanes": lanes})


def check(strategy: Strategy, workers: int, megabits: int, prepared: Path, folder: Path) -> Checked:
    """Measures a strategy with links as they are and with slow ones."""
    shared = check_config(prepared, workers)
    config = strategy.configured(shared, workers)
    granule = LaneManifest.load(prepared / "lanes").granule
    executors = load_engine(strategy.training["engine"]).executors(config)
    with host_cluster(folder, cores=1, seen=[prepared], count=1 + executors) as cluster:
        fast = measured(cluster, config, strategy, granule * workers, folder / "fast")
        beside = {
            name: [measured(cluster, own, strategy, granule * workers, folder / name)]
            for name, own in _beside(strategy, shared, workers).items()
        }
        with ExitStack() as slow:
            for host in cluster.hosts:
                slow.enter_context(limited(host, f"rate {megabits}mbit {BURST}"))
            after = measured(cluster, config, strategy, granule * workers, folder / "slow")
    evidence = Evidence(several=[fast], **beside)
    load = load_of(evidence, strategy, granule * workers, config.training.round_steps)
    if load is None:
        raise typer.BadParameter(f"{strategy.name} does not tell what its exchange takes")
    network = Network(bandwidth=megabits * 1e6 / 8, latency=LATENCY)
    rate = predicted_rate(scheme_of(strategy), load, network, workers)
    return Checked(
        strategy.name,
        workers,
        megabits,
        fast.examples_per_second,
        after.examples_per_second,
        rate,
    )


def _beside(strategy: Strategy, shared: Config, workers: int) -> dict[str, Config]:
    """What tells the exchange of a strategy, beside itself: a field of `Evidence` and settings."""
    whole = replace(strategy, training={**strategy.training, "sharding": "none"})
    alone, unsharded = strategy.configured(shared, 1), whole.configured(shared, workers)
    return {
        "all-reduce": {},
        "sharded": {"unsharded": unsharded},
        "averaging": {"alone": alone},
        "servers": {"alone": alone},
    }[scheme_of(strategy)]


def measured(
    cluster: HostCluster, config: Config, strategy: Strategy, step_examples: int, run: Path
) -> Reading:
    """Trains on the hosts, and counts what passes the links."""
    placed = config.run.model_copy(update={"folder": str(run)})
    path, log = run.with_suffix(".yaml"), run.with_suffix(".log")
    path.write_text(configuration.dump(config.model_copy(update={"run": placed})))
    spark = cluster.settings(load_engine(strategy.training["engine"]).executors(config))
    given = [f"--set=spark.{key}={value}" for key, value in spark.items()]
    seen: list[tuple[int, int]] = []
    driver = cluster.start([*CLI, "train", "--config", path, *given], log)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while driver.poll() is None:
            assert time.monotonic() < deadline, log.read_text()[-500:]
            step = len(lines_of(run))
            if step and (not seen or step > seen[-1][0]):
                seen.append((step, sent_bytes(cluster)))
            time.sleep(0.05)
    finally:
        end(driver)
    assert driver.returncode == 0, log.read_text()[-500:]
    lines = lines_of(run)
    settled = [one for one in seen if one[0] >= settled_step(len(lines))]
    assert settled, "no step was seen while it trained"
    (before, sent), (last, sent_then) = settled[0], settled[-1]
    return read_trial(
        lines,
        Usage(0, 0, 0, 0),
        step_examples,
        strategy=strategy.name,
        workers=config.training.workers,
        round=0,
        # A run that was over between two looks tells nothing.
        bytes_per_step=(sent_then - sent) / (last - before) if last > before else None,
    )


def lines_of(run: Path) -> list[dict]:
    """The metrics lines so far."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def sent_bytes(cluster: HostCluster) -> int:
    """What all hosts have sent so far, as the switch has received it."""
    switch = cluster.hosts[0].switch
    counted = {}
    for line in Path(f"/proc/{switch}/net/dev").read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        counted[name.strip()] = int(numbers.split()[0])
    return sum(counted[port_of(host.number)] for host in cluster.hosts)


if __name__ == "__main__":
    typer.run(main)
