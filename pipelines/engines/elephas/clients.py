"""Elephas's clients of a parameter server, with one connection per worker. Run on an executor."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.quiet import quiet_import

# The library imports TensorFlow, which greets on standard error.
with quiet_import():
    from elephas.parameter.client import BaseParameterClient, HttpClient, SocketClient

from pipelines.encoder.weights import Weights
from pipelines.training.parameter_server.lines import HttpLine, Line, SocketLine
from pipelines.training.parameter_server.wire import Answered, Asked, Form


class GranuleClient(BaseParameterClient):  # type: ignore[misc] # the library has no types
    """What both clients share; mixed into those of Elephas. Pickled on the driver.

    Attributes:
        line: The way to the server, once it is known.
    """

    line: Line
    make_line: type[Line]

    def __init__(self, port: int) -> None:
        # Not the library's, which looks up a name of this host that need not be known.
        self.port = port

    def reach(
        self, address: tuple[str, int], token: str, forms: Mapping[str, Form], seconds: float
    ) -> None:
        """Takes what the library's constructor does not know; see :class:`Line`."""
        self.line = self.make_line(address, token, forms, seconds)

    # In place of the library's, which unpickle what arrives.
    def get_parameters(self, asked: Asked) -> tuple[Answered, Weights | None]:
        """The parameters, or None where they are not there yet."""
        return self.line.ask("parameters", asked)

    def update_parameters(self, delta: Weights, asked: Asked) -> Answered:
        """Has the parameters updated; returns when they have been."""
        return self.line.ask("update", asked, delta)[0]


class GranuleHttpClient(GranuleClient, HttpClient):  # type: ignore[misc] # the library has no types
    """Over HTTP."""

    make_line = HttpLine


class GranuleSocketClient(GranuleClient, SocketClient):  # type: ignore[misc] # the library has no types
    """Over one TCP connection."""

    make_line = SocketLine
