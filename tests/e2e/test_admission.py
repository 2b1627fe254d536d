"""Which connections torch's store admits: hosts with a network of their own, and several users."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.store.c10d import messages as c10d
from holdfast.store.c10d.wire import encode_request
from tests.e2e.jobs import Door
from tests.waiting import until

WITHIN_S = 120.0
OTHER_USER = 54321
FIRST, SECOND, NO_AGENT = "10.99.1.1", "10.99.1.2", "10.99.2.2"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can have networks of its own"),
    pytest.mark.skipif(not shutil.which("ip"), reason="nothing to lay cables with: no `ip`"),
]

# Both ranks meet at the workers' store; then rank 1 waits for the test.
MEET = """
import os, sys
from tests.e2e.entrypoints import wait_for
rank, where = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
if sys.argv[2] == "torch":
    from torch.distributed import TCPStore
    store = TCPStore(*where, is_master=False)
else:
    import holdfast
    store = holdfast.open_store("c10d://%s:%d" % where)
store.set(f"rank-{rank}", b"here")
store.wait(["rank-0", "rank-1"])
if rank == 1:
    print("at", *where, flush=True)
    wait_for(sys.argv[1])
    store.set("done", b"")
store.wait(["done"])
"""
KNOCK = """
import os, socket, sys
host, port, hello, user = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3]), sys.argv[4]
os.setuid(int(user))
with socket.socket() as sock:
    sock.settimeout(60)
    sock.connect((host, port))
    sock.sendall(hello)
    print("admitted" if sock.recv(4) else "refused")
"""
HELLO = encode_request(c10d.Validate()) + encode_request(c10d.Ping(1))


class Host:
    """A network of its own, for as long as its process lives."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        until(self._has_network)
        self.inside = ("nsenter", f"--net=/proc/{self.pid}/ns/net")
        self.ip("link set lo up")

    def _has_network(self) -> bool:
        if self._process.poll() is not None:
            _, trouble = self._process.communicate()
            pytest.skip(f"this system gives no network of its own: {trouble.strip()}")
        return self._network() != os.readlink("/proc/self/ns/net")

    def _network(self) -> str:
        try:
            return os.readlink(f"/proc/{self.pid}/ns/net")
        except OSError:  # it has ended
            return os.readlink("/proc/self/ns/net")

    def ip(self, command: str) -> None:
        subprocess.run([*self.inside, "ip", *command.split()], check=True, timeout=WITHIN_S)

    def knock(self, host: str, port: str, user: int = 0) -> str:
        """Connect as a client of torch's would; return what came of it."""
        command = [sys.executable, "-S", "-c", KNOCK, host, port, HELLO.hex(), str(user)]
        done = subprocess.run(
            [*self.inside, *command],
            stdout=subprocess.PIPE,
            text=True,
            timeout=WITHIN_S,
            check=True,
        )
        return done.stdout.strip()

    def close(self) -> None:
        self._process.communicate()


def lay_cable(one: Host, address: str, other: Host, other_address: str) -> None:
    name = f"to{other.pid}"
    one.ip(f"link add {name} type veth peer name eth0 netns {other.pid}")
    one.ip(f"addr add {address}/24 dev {name}")
    one.ip(f"link set {name} up")
    other.ip(f"addr add {other_address}/24 dev eth0")
    other.ip("link set eth0 up")


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host, Host]]:
    """Yield two hosts for the nodes of a job, and one that reaches the first and has no agent."""
    with ExitStack() as stack:
        made = [Host() for _ in range(3)]
        for host in made:
            stack.callback(host.close)
        first, second, third = made
        lay_cable(first, FIRST, second, SECOND)
        lay_cable(first, "10.99.2.1", third, NO_AGENT)
        third.ip("route add default via 10.99.2.1")
        yield first, second, third


@contextmanager
def node(host: Host, *command: str) -> Iterator[subprocess.Popen[str]]:
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [*host.inside, sys.executable, "-m", *command],
        env=os.environ | {"HOLDFAST_SECRET": "of both hosts and nobody else", "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=WITHIN_S)


def where_it_meets(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the master's address, which rank 1 tells when all workers have met."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("at "):
            _, host, port = line.split()
            return host, port
    _, trouble = process.communicate(timeout=WITHIN_S)
    raise AssertionError(trouble)


C10D = ("--rdzv-backend=c10d", f"--rdzv-endpoint={FIRST}:29400")
STATIC = (f"--master-addr={FIRST}", "--master-port=29500")


@pytest.mark.parametrize(
    ("meeting", "client"), [(C10D, "torch"), (STATIC, "ours")], ids=["c10d", "static"]
)
def test_the_store_of_two_hosts_admits_only_the_user_of_the_job(
    hosts: tuple[Host, Host, Host],
    meeting: tuple[str, ...],
    client: str,
    tmp_path: Path,
) -> None:
    first, second, third = hosts
    script, door = tmp_path / "meet.py", Door(tmp_path / "door")
    script.write_text(MEET)
    flags = ("holdfast", "run", "--nnodes=2", *meeting)
    rest = (str(script), door.path, client)
    with (
        node(first, *flags, "--node-rank=0", *rest) as one,
        node(second, *flags, "--node-rank=1", *rest) as two,
    ):
        where = where_it_meets(two)
        assert where[0] == FIRST
        assert first.knock(*where) == "admitted"
        assert second.knock(*where) == "admitted"
        assert first.knock(*where, user=OTHER_USER) == "refused"
        assert second.knock(*where, user=OTHER_USER) == "refused"
        assert third.knock(*where) == "refused"
        door.open()
        _, told = one.communicate(timeout=WITHIN_S)
        two.communicate(timeout=WITHIN_S)
        assert (one.returncode, two.returncode) == (0, 0), told
    assert f"it belongs to user {OTHER_USER}, not to 0" in told
