"""Libraries that engines need, and the command that installs them."""

from __future__ import annotations

from importlib.util import find_spec

from pipelines.errors import EngineUnavailable

# The extra of this package that installs each framework.
FRAMEWORK_EXTRAS = {"tensorflow": "local", "torch": "torch"}


def check_installed(module: str, extra: str) -> None:
    """Refuses an engine whose library is missing.

    Args:
        module: What the engine imports.
        extra: What installs it.

    Raises:
        EngineUnavailable: With the install command.
    """
    if find_spec(module) is None:
        raise EngineUnavailable(
            "training.engine",
            f"{module} is not installed",
            f'pip install "sentence-pipelines[{extra}]" on the driver and every executor',
        )


def check_framework(framework: str) -> None:
    """Refuses a framework that is missing.

    Raises:
        EngineUnavailable: With the install command.
    """
    check_installed(framework, FRAMEWORK_EXTRAS[framework])
