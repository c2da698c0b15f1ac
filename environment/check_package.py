"""Proves an environment archive: trains on a cluster whose machines have no Python.

A master, two workers and the driver run where only a shell, tar, gzip, a Java and Spark are to be
seen. spark-submit sends the archive along; each of its engines trains, on a small corpus, and
all that promise the same loss must end at the same one. The last model is measured, embeds a table,
and is searched with.

``make package-check`` runs it for the archive in ``dist/``:

    python environment/check_package.py [--engines torch:torch bigdl:bigdl]

Exit codes: 0 when all of them trained; 1 when one did not; 2 when it could not be tried.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bare import Machine, make_machine, standalone_cluster, submit
from build_package import ARCHIVE, DIST, ROOT, last_line, say
from deadlines import ended
from errors import PackageError

from pipelines.engines.base import load_engine
from pipelines.errors import InputError

# The package without which a framework cannot be tried.
NEEDS = {"tensorflow": "tensorflow", "torch": "torch", "bigdl": "bigdl-dllib-spark3"}
JOB_SECONDS = 600.0
CONF_SECONDS = 300.0
# Of the loss, which arithmetic in another order changes in its last digits.
TOLERANCE = 2e-3
JOB = {
    "corpus": {"inputs": ["/project/docs/guides"], "format": "markdown", "pairs": "adjacent"},
    "prepared": {"folder": "/shared/prepared"},
    "tokens": {"max_length": 32, "vocabulary": "train", "vocabulary_size": 1000},
    "lanes": {"count": 4, "granule": 8},
    "encoder": {"start": "random", "layers": 1, "hidden": 32, "heads": 2},
    "training": {
        "workers": 2,
        "granules_per_step": 2,
        "max_steps": 6,
        "learning_rate": 1e-3,
        "log_every": 1,
    },
}
# What embeds: an archive with none of them measures and searches nothing.
BACKENDS = {"openvino", "torch", "tensorflow"}
# The extras without which `evaluate` cannot be tried.
MEASURES = {"evaluation", "report"}
# The jobs that use the last model, with what they are told beside its settings.
AFTERWARDS = {
    "evaluate": [],
    "embed": [
        *("--set", "embedding.inputs=[/shared/prepared/corpus/evaluation/documents.parquet]"),
        *("--set", "embedding.output=/shared/vectors"),
    ],
    "search": ["--set", "embedding.output=/shared/vectors", "--query", "an executor that is lost"],
}


@dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
        engine: Of the registry.
        framework: That computes.
    """

    engine: str
    framework: str

    def overrides(self) -> list[str]:
        """As arguments of a job."""
        values = {
            "training.engine": self.engine,
            "training.framework": self.framework,
            "training.sharding": load_engine(self.engine).shardings[0],
            "run.folder": f"/shared/{self.engine}-{self.framework}",
        }
        return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the archive; gives the exit code."""
    parser = argparse.ArgumentParser(description="Trains from an archive, on a bare cluster.")
    parser.add_argument("--archive", type=Path, default=DIST / ARCHIVE)
    parser.add_argument("--work", type=Path, help="a folder for logs and runs, which is kept")
    parser.add_argument(
        "--engines", nargs="+", metavar="ENGINE:FRAMEWORK", help="all of the archive unless told"
    )
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, stop)
    try:
        with tempfile.TemporaryDirectory(prefix="package-check-") as work:
            shared = (asked.work or Path(work) / "shared").absolute()
            failed = check(asked.archive.absolute(), asked.engines, Path(work), shared)
    except (PackageError, InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


def stop(*_: object) -> None:
    """Ends the cluster and removes the folder, as an interrupt does."""
    # A second signal must not hinder the first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def check(archive: Path, engines: Sequence[str] | None, work: Path, shared: Path) -> list[str]:
    """Runs prepare, every training, and what uses a model; gives what failed.

    Args:
        archive: The environment.
        engines: As `ENGINE:FRAMEWORK`; all of the archive unless given.
        work: An empty folder.
        shared: The folder that all machines see.

    Raises:
        PackageError: It could not be tried.
    """
    environment = work / "environment"
    shared.mkdir(parents=True, exist_ok=True)
    facts = unpack(archive, environment)
    trials = [asked_trial(text) for text in engines] if engines else possible(facts)
    (shared / "job.yaml").write_text(json.dumps(JOB))
    folders = {
        "/environment": environment,
        "/dist": archive.parent,
        "/shared": shared,
        "/project": ROOT,
    }
    machine = make_machine(work / "root", folders)
    with standalone_cluster(machine) as master:
        if not (shared / "prepared" / "lanes").is_dir():
            failed = run(machine, master, archive.name, "prepare", Trial("local", "tensorflow"))
            if failed:
                return [failed]
        results = [run(machine, master, archive.name, "train", trial) for trial in trials]
        failures = [result for result in results if result]
        failures += compare(shared, trials)
        if not failures:
            jobs = possible_afterwards(facts)
            done = (run(machine, master, archive.name, job, trials[-1]) for job in jobs)
            failures += filter(None, done)
    return failures


def unpack(archive: Path, folder: Path) -> dict[str, Any]:
    """Unpacks the archive for the driver; gives what it says of itself.

    Raises:
        PackageError: There is none.
    """
    folder.mkdir()
    try:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="tar")
    except (OSError, tarfile.TarError) as error:
        raise PackageError(f"{error}: run `make package` first") from error
    facts: dict[str, Any] = json.loads((folder / "environment.json").read_text())
    return facts


def asked_trial(text: str) -> Trial:
    """`ENGINE:FRAMEWORK`, or `ENGINE` with the first framework that it knows.

    Raises:
        InputError: There is no such engine.
    """
    name, _, framework = text.partition(":")
    return Trial(name, framework or load_engine(name).frameworks[0])


def possible(facts: dict[str, Any]) -> list[Trial]:
    """What an archive can be tried with."""
    return [
        Trial(engine, framework)
        for engine in facts["engines"]
        for framework in load_engine(engine).frameworks
        if NEEDS[framework] in facts["versions"]
    ]


def possible_afterwards(facts: dict[str, Any]) -> list[str]:
    """The jobs of :data:`AFTERWARDS` that an archive can be tried with."""
    if not BACKENDS & facts["versions"].keys():
        return []
    return [job for job in AFTERWARDS if job != "evaluate" or set(facts["extras"]) >= MEASURES]


def run(machine: Machine, master: str, archive: str, job: str, trial: Trial) -> str | None:
    """Runs a job by spark-submit, and says what came of it; gives what failed."""
    name = f"{job} {trial.engine} {trial.framework}" if job != "prepare" else job
    log = machine.mounts["/shared"] / f"{name.replace(' ', '-')}.log"
    settings = ["--config", "/shared/job.yaml", *trial.overrides()]
    began = time.monotonic()
    code = submit(
        machine,
        [
            *("--master", master, "--archives", f"/dist/{archive}#environment"),
            *("--conf", "spark.pyspark.python=./environment/bin/python"),
            *("--conf", "spark.pyspark.driver.python=/environment/bin/python"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *conf_of(machine, trial, settings),
            *(f"/project/jobs/{job}.py", *settings, *AFTERWARDS.get(job, ())),
        ],
        log,
        seconds=JOB_SECONDS,
    )
    took = f"{time.monotonic() - began:.0f} s"
    # Each executor of each job has unpacked an environment, which the worker keeps.
    for left in machine.root.glob("tmp/worker-*/app-*"):
        shutil.rmtree(left)
    if code:
        kept = Path(tempfile.gettempdir()) / f"package-check-{log.name}"
        shutil.copyfile(log, kept)
        say(f"{name}: FAILED, {reason(log.read_text())}; see {kept}")
        return name
    say(f"{name}: done in {took}{loss_text(machine.mounts['/shared'], trial, job)}")
    return None


def reason(log: str) -> str:
    """What an error in a log comes to: the job's own line, or the last that names an exception."""
    own: list[str] = re.findall(r"^error: .*$", log, re.MULTILINE)
    named: list[str] = re.findall(r"^[\w.]+(?:Error|Exception): .*$", log, re.MULTILINE)
    return (own or named or [last_line(log)])[-1]


def conf_of(machine: Machine, trial: Trial, job_arguments: Sequence[str]) -> list[str]:
    """What `sentence-pipelines engines` tells to give spark-submit.

    Raises:
        PackageError: It tells nothing, or not in time.
    """
    command = ["/environment/bin/sentence-pipelines", "engines", trial.engine, *job_arguments]
    done = ended(machine.command(command), CONF_SECONDS)
    if done.returncode:
        raise PackageError(f"{shlex.join(command)} failed: {last_line(done.stderr)}")
    lines = (line.removesuffix("\\") for line in done.stdout.splitlines())
    return [part for line in lines if line.startswith("--conf") for part in shlex.split(line)]


def loss_text(shared: Path, trial: Trial, job: str) -> str:
    """The last loss of a training, for people."""
    return f", loss {final_loss(shared, trial):.4f}" if job == "train" else ""


def final_loss(shared: Path, trial: Trial) -> float:
    """The loss of the last step."""
    path = shared / f"{trial.engine}-{trial.framework}" / "metrics.json"
    return float(json.loads(path.read_text())["training"]["final_loss"])


def compare(shared: Path, trials: Sequence[Trial]) -> list[str]:
    """Names of engines whose loss is another than that of the first; Elephas averages weights."""
    alike = [
        trial
        for trial in trials
        if trial.engine != "elephas"
        and (shared / f"{trial.engine}-{trial.framework}" / "metrics.json").exists()
    ]
    losses = {trial: final_loss(shared, trial) for trial in alike}
    unlike = [trial for trial in alike if abs(losses[trial] - losses[alike[0]]) > TOLERANCE]
    for trial in unlike:
        say(f"{trial.engine} {trial.framework}: FAILED, another loss than {alike[0].engine}")
    return [f"{trial.engine} {trial.framework}" for trial in unlike]


if __name__ == "__main__":
    sys.exit(main())
