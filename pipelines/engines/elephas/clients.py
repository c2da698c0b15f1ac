"""A worker's client of the parameter server, with one connection. Runs on an executor."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.quiet import quiet_import

# The library imports TensorFlow, which greets on standard error.
with quiet_import():
    from elephas.parameter.client import BaseParameterClient

from pipelines.models.weights import Weights
from pipelines.training.parameter_server.client import Client
from pipelines.training.parameter_server.messages import Form, Request, ResponseHeader


class GranuleClient(BaseParameterClient):  # type: ignore[misc] # the library has no types
    """What Elephas hands to its workers; pickled on the driver.

    Args:
        client_class: The transport.

    Attributes:
        connection: To the server, once it is known.
    """

    connection: Client

    def __init__(self, client_class: type[Client]) -> None:
        self._client_class = client_class

    def configure(
        self,
        address: tuple[str, int],
        token: str,
        forms: Mapping[str, Form],
        seconds: float,
        fingerprint: str | None = None,
    ) -> None:
        """Says where the server is; see :class:`Client` for the arguments."""
        self.connection = self._client_class(address, token, forms, seconds, fingerprint)

    # In place of the library's, which unpickle what arrives.
    def get_parameters(self, request: Request) -> tuple[ResponseHeader, Weights | None]:
        """The parameters, or None where they are not there yet."""
        return self.connection.ask("parameters", request)

    def update_parameters(self, delta: Weights, request: Request) -> ResponseHeader:
        """Has the parameters updated; returns when they have been."""
        return self.connection.ask("update", request, delta)[0]
