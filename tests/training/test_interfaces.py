"""Where a worker is reached by the others."""

import os
import socket

import pytest

from pipelines.errors import PipelineError
from pipelines.training.collectives.interfaces import (
    GLOO_INTERFACE,
    interface_of,
    own_address,
    prefer_interface_to,
)

NOWHERE = ("127.0.0.1", 9)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_own_address_is_that_of_the_way_to_the_driver(host):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert own_address((host, server.getsockname()[1])) == "127.0.0.1"


def test_an_interface_is_found_by_each_of_its_addresses():
    assert interface_of("127.0.0.1") == "lo"
    # The whole of 127/8 is the host's, whatever the interface lists.
    assert interface_of("127.0.1.1") == "lo"
    with pytest.raises(PipelineError, match=r"no network interface has the address 203\.0\.113\.9"):
        interface_of("203.0.113.9")


def test_an_interface_has_an_address_of_the_newer_protocol():
    if not socket.has_ipv6:
        pytest.skip("this system has no IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    assert own_address(("::1", 9)) == "::1"
    assert interface_of("::1") == "lo"


def test_what_an_administrator_has_set_stays(monkeypatch):
    # What is set only to be deleted is gone after the test, also what was not there before it.
    monkeypatch.setenv(GLOO_INTERFACE, "any")
    monkeypatch.delenv(GLOO_INTERFACE)
    prefer_interface_to(NOWHERE)
    assert os.environ[GLOO_INTERFACE] == "lo"
    monkeypatch.setenv(GLOO_INTERFACE, "fast0")
    prefer_interface_to(NOWHERE)
    assert os.environ[GLOO_INTERFACE] == "fast0"
