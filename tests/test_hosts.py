"""The hosts that tests are run on: what a host has of its own, and what is left of it."""

import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest
from hosts import COUNT, name_of, some_hosts, why_not

pytestmark = pytest.mark.skipif(bool(reason := why_not()), reason=str(reason))

SECONDS = 30
LISTEN = "import socket; s = socket.create_server(('', 7000)); print('up', flush=True); s.accept()"
REACH = "import socket; socket.create_connection(('{}', 7000), {})"
OWN_ADDRESS = "import socket; print(socket.gethostbyname(socket.gethostname()))"
OWNER = """
import sys, time
from pathlib import Path
from hosts import some_hosts
with some_hosts(Path(sys.argv[1])) as hosts:
    print(*(number for host in hosts for number in (host.init, host.switch)), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def hosts(tmp_path):
    with some_hosts(tmp_path) as made:
        yield made


def python(source):
    return [sys.executable, "-ISE", "-c", source]


def wait_until(holds):
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_hosts_have_names_files_and_processes_of_their_own(hosts, tmp_path):
    assert [host.ask(["hostname"]).strip() for host in hosts] == [*map(name_of, range(COUNT))]
    # A file of that name may be the machine's own, left by whatever else runs there.
    name = f"own-{uuid.uuid4().hex}"
    hosts[0].ask(["touch", f"/tmp/{name}", f"/dev/shm/{name}", tmp_path / "shared"])
    assert name in hosts[0].ask(["ls", "/tmp"])
    there = hosts[1].ask(["ls", "/tmp", "/dev/shm"]).split()
    assert name not in there
    assert "shared" in hosts[1].ask(["ls", tmp_path])
    assert not any(Path(folder, name).exists() for folder in ("/tmp", "/dev/shm"))
    assert hosts[1].processes() == []


def test_a_host_that_is_cut_off_is_silent_until_it_joins_again(hosts, tmp_path):
    first, second, _ = hosts
    listener = second.start(python(LISTEN), log := tmp_path / "log")
    wait_until(log.read_text)
    second.cut_off()
    with pytest.raises(subprocess.CalledProcessError) as caught:
        first.ask(python(REACH.format(second.name, 1)))
    assert "timed out" in caught.value.stderr
    second.join()
    # One that were given up on a busy machine might be all that the listener accepts.
    asked = python(REACH.format(second.name, SECONDS))
    assert first.run(asked, tmp_path / "asked", 2 * SECONDS) == 0, (tmp_path / "asked").read_text()
    assert listener.wait(SECONDS) == 0


def test_processes_of_a_host_are_stopped_and_killed_by_their_command(hosts):
    running = [host.start(["sleep", "600"], Path("/dev/null")) for host in hosts[:2]]
    wait_until(lambda: all(host.processes("sleep 600") for host in hosts[:2]))
    (stopped,) = hosts[0].signal("sleep 600", signal.SIGSTOP)
    wait_until(lambda: psutil.Process(stopped).status() == psutil.STATUS_STOPPED)
    assert hosts[0].signal("sleep 600") == [stopped]
    running[0].wait(SECONDS)
    assert hosts[0].processes() == []
    assert running[1].poll() is None


@pytest.mark.parametrize(
    ("style", "address"),
    [("good", "10.81.0.1"), ("debian", "127.0.1.1"), ("two-cards", "10.81.1.1"), ("none", None)],
)
def test_a_host_takes_its_own_name_for_what_its_style_says(tmp_path, style, address):
    with some_hosts(tmp_path, style, count=1) as (host,):
        if address is not None:
            assert host.ask(python(OWN_ADDRESS)).strip() == address
            return
        with pytest.raises(subprocess.CalledProcessError, match="non-zero"):
            host.ask(python(OWN_ADDRESS))


def test_nothing_is_left_of_hosts_whose_process_was_killed(tmp_path):
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        started = [psutil.Process(int(one)) for one in owner.stdout.readline().split()]
        assert len(started) == 2 * COUNT
        owner.kill()
    _, alive = psutil.wait_procs(started, SECONDS)
    assert alive == []
