"""Another user of the machine against RPC over Unix sockets; docs/security.md has the list.

The attack: a worker ends, and its abstract socket name is free for every user. Another user listens
there, passes the handshake of a caller on to a living worker, and answers the call with a
pickle of their own.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import PeerLost
from holdfast.net.auth import Key
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.wire.codec import encode_head
from holdfast.rpc.wire.hello import WorkerHello, encode_welcome
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo
from tests.unit.rpc.world import KEY, Table

SOON = 20.0
OTHER, GROUP = 12345, 54321
HELLO_BYTES, PROOF_BYTES = 38, 32

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


class World:
    """A caller, a worker that lives, and the contact of one that has ended."""

    def __init__(self, key: Key = KEY) -> None:
        self.table = Table()
        self.caller, self.living, dead = (
            Agent(WorkerInfo(name, number), self.table, key, timeout_s=SOON)
            for number, name in enumerate(("caller", "living", "dead"))
        )
        for agent in (self.caller, self.living, dead):
            agent.start()
            assert agent.contact is not None
            self.table.contacts.append(agent.contact)
        self.dead: Contact = self.table.contacts[2]
        dead.close()
        self.check_hello: list[WorkerHello] = []
        check_hello = self.living._dispatcher.check_hello

        def spy(hello: WorkerHello) -> None:
            self.check_hello.append(hello)
            check_hello(hello)

        self.living._dispatcher.check_hello = spy  # type: ignore[method-assign]

    @property
    def living_name(self) -> str:
        assert self.living.contact is not None
        return self.living.contact.unix

    def close(self) -> None:
        self.caller.close()
        self.living.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


AS_ANOTHER = """
import os, socket, sys
uid, name, target, answer = int(sys.argv[1]), *map(bytes.fromhex, sys.argv[2:])
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
heard = 0
with socket.socket(socket.AF_UNIX) as rogue, socket.socket(socket.AF_UNIX) as worker:
    rogue.bind(name)
    rogue.listen()
    worker.connect(target)
    print("ready", flush=True)
    client, _ = rogue.accept()
    client.settimeout(20)
    worker.settimeout(20)
    try:
        for theirs, ours in ((38, 38), (32, 33)):  # the handshake, passed on
            said = client.recv(theirs)
            heard += len(said)
            worker.sendall(said)
            client.sendall(worker.recv(ours))
        heard += len(client.recv(65536))  # the hello
        client.sendall(answer)
        heard += len(client.recv(65536))
    except OSError:
        pass
print(heard)
"""


def gadget(canary: Path) -> bytes:
    """Return the answers to a hello and to call 1, the second of which makes a file."""
    code = f"open({str(canary)!r}, 'w').close()"
    body = b"cbuiltins\nexec\n(V" + code.encode() + b"\ntR."
    answers = (encode_welcome(""), Message(Kind.REPLY, 1, body))
    return b"".join(encode_head(each) + bytes(each.body) for each in answers)


@contextlib.contextmanager
def another_user(script: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-S", "-c", script, str(OTHER), *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@needs_root
def test_another_user_at_the_address_of_a_dead_worker_gets_and_runs_no_call(
    world: World, tmp_path: Path
) -> None:
    """PE-5."""
    canary = tmp_path / "canary"
    names = [os.fsencode(name).hex() for name in (world.dead.unix, world.living_name)]
    with another_user(AS_ANOTHER, *names, gadget(canary).hex()) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(PeerLost, match=f"the peer runs as user {OTHER}: only user 0"):
            call(world.caller)
        assert child.stdout.readline() == "0\n"
    assert not canary.exists()
    assert world.check_hello == []


CONNECT = """
import os, socket, sys
uid, name, said = int(sys.argv[1]), *map(bytes.fromhex, sys.argv[2:])
os.setgroups([int(os.environ["GROUP"])])
os.setgid(uid)
os.setuid(uid)
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(20)
    sock.connect(name)
    try:
        sock.sendall(said)
        print(len(sock.recv(65536)))
    except OSError:
        print(0)
"""


@needs_root
@pytest.mark.parametrize(("group", "answer"), [(None, "0\n"), (GROUP, f"{HELLO_BYTES}\n")])
def test_another_user_is_disconnected_unless_its_group_was_named(
    group: int | None, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SR-1."""
    monkeypatch.setenv("GROUP", str(GROUP))
    world = World(Key(KEY, group))
    hello = b"HFST\1\0" + os.urandom(32)
    try:
        name = os.fsencode(world.living_name).hex()
        with another_user(CONNECT, name, hello.hex()) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == answer
        assert world.caller.call("living", divmod, (7, 2)) == (3, 1)
    finally:
        world.close()


def call(caller: Agent) -> object:
    return caller.call("dead", divmod, (7, 2))


def call_async(caller: Agent) -> object:
    return caller.call_async("dead", divmod, (7, 2)).wait(SOON)


def pass_on(rogue: socket.socket, target: str, heard: list[int]) -> None:
    """Let a caller and a worker talk to each other, until either hangs up."""
    client, _ = rogue.accept()
    with client, socket.socket(socket.AF_UNIX) as worker:
        worker.connect(target)
        while True:
            for sock in select.select([client, worker], [], [], SOON)[0]:
                data = sock.recv(65536)
                if not data:
                    return
                if sock is client:
                    heard.append(len(data))
                (worker if sock is client else client).sendall(data)


@pytest.mark.parametrize("call", [call, call_async])
def test_a_handshake_that_is_passed_on_to_another_worker_fails(
    world: World, call: Callable[[Agent], object]
) -> None:
    """PE-5: the proof is for one incarnation of one worker, whatever relays it."""
    heard: list[int] = []
    with socket.socket(socket.AF_UNIX) as rogue:
        rogue.bind(world.dead.unix)
        rogue.listen()
        thread = threading.Thread(target=pass_on, args=(rogue, world.living_name, heard))
        thread.start()
        with pytest.raises(PeerLost, match="another worker than the one that we mean"):
            call(world.caller)
        thread.join()
    assert sum(heard) == HELLO_BYTES + PROOF_BYTES
    assert world.check_hello == []


def test_a_worker_that_took_the_place_of_another_one_is_not_taken_for_it(world: World) -> None:
    """A port may be another worker's by now, which holds the same secret."""
    assert world.living.contact is not None
    stale = replace(world.living.contact, info=WorkerInfo("stale", 7), incarnation="ended")
    world.table.contacts.append(stale)
    with pytest.raises(PeerLost, match="another worker than the one that we mean"):
        world.caller.call("stale", divmod, (7, 2))
    assert world.check_hello == []
