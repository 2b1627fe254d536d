"""Workers of two hosts, as far as their networks go: `rpc_hosts.py`, in a network of its own.

It is one host, with the store and the worker "w0"; it makes another one, with "w1", and a cable
between the two, which it cuts.
"""

from __future__ import annotations

import os
import subprocess

import holdfast
from holdfast.errors import PeerLost
from holdfast.rpc import current
from holdfast.rpc.api import init_rpc, remote, rpc_async, rpc_sync, shutdown
from tests.unit.rpc.api_worker import identify, stay, visit_from, visited
from tests.unit.rpc.api_world import Worker, workers
from tests.waiting import until

SOON = 60.0
HERE, THERE = "10.99.0.1", "10.99.0.2"


def network(command: str, within: int | None = None) -> None:
    inside = [] if within is None else ["nsenter", f"--net=/proc/{within}/ns/net"]
    subprocess.run([*inside, "ip", *command.split()], check=True, timeout=SOON)


def lay_cable(other: int) -> None:
    """Connect this network with that of another process."""
    own = os.readlink("/proc/self/ns/net")
    until(lambda: os.readlink(f"/proc/{other}/ns/net") != own)
    network(f"link add here type veth peer name there netns {other}")
    network(f"addr add {THERE}/24 dev there", other)
    network("link set there up", other)
    network(f"addr add {HERE}/24 dev here")
    network("link set here up")


def lose(waiting: holdfast.rpc.Future[None]) -> str:
    try:
        waiting.wait(SOON)
    except PeerLost as error:
        return str(error)
    raise AssertionError("it is still there")


def main() -> None:
    network("link set lo up")
    network(f"addr add {HERE}/32 dev lo")  # so that the store can be served before there is a cable
    with holdfast.serve_store(f"tcp://{HERE}:0") as server, workers() as started:
        where, within = server.endpoint, ["unshare", "--net"]
        other = Worker("w1", None, within, rank=1, world_size=2, init_method=where, keep_alive=4.0)
        started.append(other)
        lay_cable(other.process.pid)
        with holdfast.open_store(where) as store:
            init_rpc("w0", rank=0, world_size=2, store=store)
            assert other.hear() == "ready"
            for name, host in (("w0", HERE), ("w1", THERE)):
                assert current.current_agent().find(name).tcp.startswith(f"{host}:")
            assert rpc_sync("w1", identify) == ("w1", 1, other.process.pid)
            assert visit_from("w1", "w0") == 1
            large = os.urandom(8 << 20)
            assert rpc_sync("w1", bytes, args=(large,)) == large
            assert rpc_async("w1", bytes, args=(large,)).wait(SOON) == large
            assert remote("w1", bytes, args=(large,)).to_here() == large

            waiting = rpc_async("w1", stay)
            network("link set here down")
            print(lose(waiting))
            network("link set here up")
            answers = []
            for _ in range(2):  # on a connection that it had, and on a new one
                other.tell("w0")
                answers.append(other.hear())
            assert [kind for kind, _ in answers] == ["PeerLost", "PeerLost"]
            print(answers[1][1])
            assert visited() == ["w1"]  # once, before
            assert shutdown(timeout=1.0) == ("w1",)


if __name__ == "__main__":
    main()
