"""The store of Horovod's ranks, and what they learn in it, without Spark and Horovod."""

import socket
import threading
from dataclasses import replace
from http.client import HTTPConnection

import pytest
from unauthenticated import answer, approach, http

from pipelines.engines.horovod import ranks as module
from pipelines.engines.horovod.ranks import environment
from pipelines.engines.horovod.rendezvous import (
    MAX_VALUE_BYTES,
    Place,
    Rendezvous,
    RendezvousClient,
    meet,
)
from pipelines.errors import PipelineError
from pipelines.runs.run import WorkerTask

HERE = Place("here", "0,1")
TASK = WorkerTask(run=None, rank=0, workers=3, monitor=("", 0), token="")


@pytest.fixture
def store():
    """A store that is open."""
    with Rendezvous("127.0.0.1", "127.0.0.1") as opened:
        yield opened


def ask(store, method, key, body=None, token=None) -> tuple[int, bytes]:
    connection = HTTPConnection(*store.address, timeout=5)
    connection.request(method, f"/{token or store.token}:0/{key}", body)
    response = connection.getresponse()
    return response.status, response.read()


def test_a_value_is_there_once_it_was_put(store):
    assert ask(store, "GET", "global/0") == (404, b"")
    assert ask(store, "PUT", "global/0", b"\x00\xffvalue") == (200, b"")
    assert ask(store, "GET", "global/0") == (200, b"\x00\xffvalue")
    assert ask(store, "GET", "local/0") == (404, b"")
    assert ask(store, "GET", "local/") == (200, b"{}")
    assert ask(store, "PUT", "global/0", b"") == (200, b"")
    assert ask(store, "GET", "global/0") == (200, b"")
    assert ask(store, "DELETE", "global/0") == (200, b"")
    assert ask(store, "GET", "global/0") == (404, b"")


def test_a_value_that_is_too_long_is_not_read(store):
    path = f"/{store.token}:0/global/0"
    for length in (MAX_VALUE_BYTES + 1, 10**15, -1):
        told = answer(store.address, http(f"PUT {path} HTTP/1.1\nContent-Length: {length}"))
        assert told.startswith(b"HTTP/1.0 413 ")
    for head in ("", "\nContent-Length: x", "\nContent-Length: 5"):
        answer(store.address, http(f"PUT {path} HTTP/1.1{head}", b"abc"))
    assert store.values == {}


def test_an_unauthenticated_client_learns_and_changes_nothing(store):
    ask(store, "PUT", "global/0", b"known")
    before = dict(store.values)
    token = store.token
    for target in ("global/0", f"{token[:-1]}:0/global/0", f"x{token}:0/global/0", f":0/{token}"):
        for method, rest in (
            ("GET", ""),
            ("DELETE", ""),
            ("HEAD", ""),
            ("PUT", "\nContent-Length: 3"),
        ):
            assert answer(store.address, http(f"{method} /{target} HTTP/1.1{rest}", b"abc")) == b""
    answers, staying = approach(store.address, "http")
    assert set(answers) == {b""}
    assert store.values == before
    assert ask(store, "GET", "global/0") == (200, b"known")
    staying.close()
    # Nor is anything served that a rank has no use for.
    assert answer(store.address, http(f"HEAD /{token}:0/global/0 HTTP/1.1")) == b""


def test_a_silent_unauthenticated_client_is_closed(store, monkeypatch):
    monkeypatch.setattr("pipelines.training.control.authenticated_server.HELLO_SECONDS", 0.2)
    with socket.create_connection(store.address, timeout=5) as stranger:
        assert stranger.recv(1) == b""


def test_nothing_listens_afterwards(store):
    store.close()
    with pytest.raises(OSError):
        socket.create_connection(store.address, timeout=2)


def test_ranks_wait_for_one_another(store):
    found = {}

    def join(rank):
        end = RendezvousClient(store.address, store.token)
        found[rank] = meet(end, replace(TASK, rank=rank), HERE, 10)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    with pytest.raises(PipelineError, match=r"ranks \[2\] did not arrive within"):
        meet(RendezvousClient(store.address, store.token), replace(TASK, rank=0), HERE, 0.3)
    join(2)
    for thread in threads:
        thread.join(120)
    assert found == {rank: [HERE] * 3 for rank in range(3)}


def test_a_rank_with_a_wrong_token_does_not_wait(store):
    with pytest.raises(OSError):
        meet(RendezvousClient(store.address, "0" * 64), TASK, HERE, 10)


def test_a_rank_asks_again_when_the_driver_is_busy(store, monkeypatch):
    asked = []

    def fail_twice(self, *arguments):
        asked.append(arguments)
        if len(asked) < 3:
            raise TimeoutError("timed out")
        return request_once(self, *arguments)

    request_once = RendezvousClient._request_once
    monkeypatch.setattr(RendezvousClient, "_request_once", fail_twice)
    end = RendezvousClient(store.address, store.token)
    end.put("places/0", "a")
    assert len(asked) == 3
    assert end.get_all("places/") == {"places/0": "a"}


def test_horovod_is_told_the_network_that_leads_to_the_store(store):
    end = RendezvousClient(store.address, store.token)
    end.put("places/0", "a")
    told = end.environment()
    host, port = store.address
    # As its C++ code puts an address together, whose port is said to be 0.
    assert told["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == f"{host}:{port}/{store.token}"
    assert told["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "0"
    assert end.own_address == "127.0.0.1"


def numbers(hosts):
    """Local rank and size, and the same across the hosts, of each rank."""
    there = [Place(host, "") for host in hosts]
    told = [environment(there, rank, []) for rank in range(len(hosts))]
    names = ("LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    return [tuple(int(one[f"HOROVOD_{name}"]) for name in names) for one in told]


def test_places_of_ranks_on_unlike_hosts():
    assert numbers(["a"]) == [(0, 1, 0, 1)]
    assert numbers(["a", "a"]) == [(0, 2, 0, 1), (1, 2, 0, 1)]
    assert numbers(["a", "b"]) == [(0, 1, 0, 2), (0, 1, 1, 2)]
    assert numbers(["b", "a", "b", "c", "b"]) == [
        (0, 3, 0, 3),
        (0, 1, 1, 3),
        (1, 3, 0, 1),
        (0, 1, 2, 3),
        (2, 3, 0, 1),
    ]


@pytest.mark.parametrize(
    ("given", "visible", "expected"),
    [
        ([], "", ""),
        ([], "4,5", "5"),
        ([], "4", "4"),
        (["2"], "", "2"),
        (["5"], "4,5", "5"),
    ],
)
def test_a_rank_sees_its_own_gpus_alone(given, visible, expected):
    told = environment([Place("a", visible)] * 2, 1, given)
    assert told[module.CUDA_DEVICES] == expected
    assert told["LOCAL_RANK"] == "1"


def test_executors_of_one_host_may_have_gpus_of_their_own():
    there = [Place("a", "0,1"), Place("a", "2,3"), Place("a", "0,1"), Place("a", "2,3")]
    told = [environment(there, rank, [])[module.CUDA_DEVICES] for rank in range(4)]
    assert told == ["0", "2", "1", "3"]
