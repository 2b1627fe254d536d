"""Four nodes meet, one is killed, a spare takes its place. Run it with `make demo`.

Five processes ask for a place in a run of exactly four nodes. In each round the four share a sum:
every rank adds up its part and puts it into the round's store. In the first round the node of
rank 2 gets stuck and is killed; the others learn that their round is over, the spare takes the
free rank, and the second round finishes the job.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import holdfast
from holdfast.errors import Fenced, TimeoutExpired
from holdfast.net.secret import new_secret
from holdfast.rendezvous.handler import Rendezvous, Round
from holdfast.rendezvous.parameters import RendezvousParameters
from holdfast.rendezvous.registry import create_rendezvous

NODES = 4
SPARES = 1
VICTIM_RANK = 2
NUMBERS = 1_000_000
STARTED = float(os.environ.get("DEMO_STARTED", time.monotonic()))


def say(who: str, text: str) -> None:
    print(f"{time.monotonic() - STARTED:5.2f} s  {who:<8}{text}", flush=True)


# A node.


def node(me: str, endpoint: str) -> None:
    logging.basicConfig(level=logging.INFO, handlers=[Reasons(me)])
    parameters = RendezvousParameters(
        "c10d", endpoint, "demo", NODES, NODES, config={"is_host": "false"}
    )
    with create_rendezvous(parameters) as rendezvous:
        why = ""
        while not rendezvous.closed():
            try:
                here = rendezvous.next_round(why)
            except holdfast.HoldfastError as error:
                say(me, f"ends: {error}")
                return
            if me != "node 1":  # its log says the same
                say(me, f"is rank {here.rank} of {here.world_size} in round {here.number}")
            why = work(me, rendezvous, here)


def work(me: str, rendezvous: Rendezvous, here: Round) -> str:
    """Do this rank's part of the round; return why the round ended."""
    if here.number == 1 and here.rank == VICTIM_RANK:
        here.store.set("stuck", str(os.getpid()).encode())
        signal.pause()  # until the axe falls
    part = sum(range(here.rank, NUMBERS, here.world_size))
    try:
        here.store.set(f"part/{here.rank}", str(part).encode())
        while rendezvous.over() is None:
            try:
                ranks = range(here.world_size)
                parts = here.store.wait([f"part/{rank}" for rank in ranks], timeout=0.1)
            except TimeoutExpired:
                continue
            if here.rank == 0:
                total = sum(map(int, parts))
                right = total == NUMBERS * (NUMBERS - 1) // 2
                say(me, f"the sum is {total}, which is {'right' if right else 'WRONG'}")
                rendezvous.close("the job is done" if right else "the job failed")
            else:
                time.sleep(0.05)  # until rank 0 has closed the run
    except Fenced:
        pass  # the round ended while we wrote
    return rendezvous.over() or "the round ended"


class Reasons(logging.Handler):
    """Shows why the leader waits; the other nodes would say the same."""

    def __init__(self, me: str) -> None:
        super().__init__()
        self.me = me

    def emit(self, record: logging.LogRecord) -> None:
        if self.me == "node 1":
            say("", f"· {record.getMessage()}")


# The one who starts them.


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        secret = new_secret()
        secret_file = Path(folder) / "secret"
        secret_file.touch(mode=0o600)
        secret_file.write_text(secret.reveal())
        with holdfast.serve_store(secret=secret) as server:
            say("", f"a store is served at {server.endpoint}")
            refuse_strangers(server.endpoint)
            env = os.environ | {
                "HOLDFAST_SECRET_FILE": str(secret_file),
                "DEMO_STARTED": str(STARTED),
            }
            address = server.endpoint.removeprefix("tcp://")
            nodes = [
                subprocess.Popen([sys.executable, __file__, f"node {number + 1}", address], env=env)
                for number in range(NODES + SPARES)
            ]
            try:
                with holdfast.open_store(server.endpoint, secret=secret) as store:
                    kill_one(store)
                codes = [process.wait(timeout=30) for process in nodes]
            finally:
                for process in nodes:
                    process.kill()
                    process.wait()
    killed = codes.count(-signal.SIGKILL)
    say("", f"{codes.count(0)} nodes ended well, {killed} was killed")
    return 0 if codes.count(0) == NODES + SPARES - 1 and killed == 1 else 1


def kill_one(store: holdfast.Store) -> None:
    [pid] = store.wait(["round/demo/1/stuck"], timeout=30)
    say("", f"the node of rank {VICTIM_RANK} is killed with SIGKILL, process {pid.decode()}")
    os.kill(int(pid), signal.SIGKILL)


def refuse_strangers(endpoint: str) -> None:
    try:
        holdfast.open_store(endpoint, secret=new_secret(), timeout=5)
    except holdfast.HoldfastError as error:
        say("", f"a stranger with another secret: {type(error).__name__}")
    host, _, port = endpoint.removeprefix("tcp://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        say("", f"a browser: hung up on, after {len(browser.recv(100))} bytes of answer")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        node(*sys.argv[1:])
    else:
        sys.exit(main())
