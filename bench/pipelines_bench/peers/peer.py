"""A peer: what another library's own way to train needs, and how it is started.

It trains in processes of its own, on the same pairs from the same start as this package, as the
readme of its library has it, and writes the lines of :mod:`.lines`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipelines.errors import PipelineError
from pipelines.files import storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.losses.in_batch_negatives import InBatchNegativesSettings
from pipelines.models.architecture import check_framework
from pipelines.models.start import start_architecture
from pipelines.settings import Config
from pipelines.settings import load as configuration
from pipelines.tokens.start import start_folder

Training = Callable[[Config], None]
Missing = Callable[[Config, bool], str]


def alone(config: Config) -> Sequence[str]:
    """No launcher: the library starts its workers."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another library's own way to train.

    Attributes:
        name: In the registry.
        framework: What computes: `tensorflow` or `torch`.
        trains: ``module:attribute`` of what trains by the settings that it is given; imported in
            the process that trains.
        missing: Says of settings, and of whether the lanes hold hard negatives, why it cannot be
            measured; empty if it can.
        launcher: What stands between Python and the module that trains, by the settings.
    """

    name: str
    framework: str
    trains: str
    missing: Missing
    launcher: Callable[[Config], Sequence[str]] = alone

    def command(self, config: Config, settings: Path) -> list[str]:
        """The command that trains.

        Args:
            config: Its settings, which are written.
            settings: The file for them.
        """
        storage.write_text(settings, configuration.dump(_with_whole_paths(config)))
        module = ["-m", __name__.rpartition(".")[0], self.name, str(settings)]
        return [sys.executable, *self.launcher(config), *module]

    def training(self) -> Training:
        """What trains; imports the library."""
        module, _, attribute = self.trains.partition(":")
        trains: Any = getattr(import_module(module), attribute)
        return trains  # type: ignore[no-any-return]


def _with_whole_paths(config: Config) -> Config:
    """The same folders wherever they are looked for: executors work in folders of their own."""
    start = start_folder(config)
    folders = {"prepared": PreparedFolder.of(config).path, "run": RunFolder.of(config).path}
    changed = {
        name: getattr(config, name).model_copy(update={"folder": str(path)})
        for name, path in folders.items()
    }
    if start is not None:
        whole = {"start": str(Path(start).absolute())}
        changed["encoder"] = config.encoder.model_copy(update=whole)
    return config.model_copy(update=changed)


def not_installed(module: str, packages: str) -> str:
    """Whether a library is missing.

    Args:
        module: What is imported.
        packages: What installs it.
    """
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # Of the package that it is in.
        found = None
    return "" if found else f"{module} is not installed: pip install {packages}"


def other_training(config: Config, has_negatives: bool) -> str:
    """Whether more, or less, is trained than a whole encoder on pairs with in-batch negatives."""
    objective, encoder = config.objective, config.encoder
    if not isinstance(objective, InBatchNegativesSettings):
        return f"objective.name: its loss is not {objective.name}"
    others = {
        "encoder.lora": encoder.lora.rank > 0,
        "encoder.freeze": encoder.freeze.is_on,
        "encoder.keep_layers": encoder.keep_layers is not None,
        "mining": has_negatives,
    }
    for key, is_on in others.items():
        if is_on:
            return f"{key}: it trains the whole start, on pairs alone"
    if not objective.is_plain or objective.negatives != "granule":
        return "objective: its loss compares anchors with the positives of a granule, and no more"
    return ""


def without_form(config: Config) -> str:
    """Whether the encoder has no form in the framework of the peer."""
    try:
        check_framework(start_architecture(config), config)
    except PipelineError as error:
        return str(error)
    return ""


def elsewhere(config: Config) -> str:
    """Whether executors are on other machines, where lines of steps could not be written."""
    master = config.spark.conf.get("master", "local-cluster")
    if master.startswith("local-cluster"):
        return ""
    return f"spark.master: it is measured with a local cluster, not on {master}"


def first_of(*reasons: str) -> str:
    """The first reason that there is; empty if there is none."""
    return next(filter(None, reasons), "")
