"""Clients that hold the secret and speak nonsense: the server stays well, and so do the others."""

from __future__ import annotations

import random
import re
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.ids import LeaseId, SessionId
from holdfast.net.address import Address
from holdfast.net.frames import FRAME_BYTES_MAX, encode_frame
from holdfast.store import ops
from holdfast.store.messages import (
    Call,
    Cancel,
    FromClient,
    Hello,
    Ping,
    Pong,
    WatchClose,
    WatchOpen,
    decode_from_server,
    encode,
)
from tests.unit.store.tcp_parts import LONG_S, dial, new_client, server_process

SESSIONS = 3000
STRANGERS = 300
MEMORY_GROWTH_MAX_KIB = 128 * 1024


def some_key(rng: random.Random) -> str:
    return rng.choice(["a", "b/1", "b/2", "é", "k" * rng.choice([1, 8192, 8193, 65535]), ""])


def some_value(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 8, 2000]))


def some_op(rng: random.Random) -> ops.AnyOp:
    key, value = some_key(rng), some_value(rng)
    lease = LeaseId(rng.choice([0, 1, 2, 2**64 - 1]))
    choices: list[ops.AnyOp] = [
        ops.Get(key),
        ops.Wait((key, some_key(rng))),
        ops.Set(key, value, rng.choice([None, lease])),
        ops.Add(key, rng.choice([0, 1, -1, ops.INT_MAX])),
        ops.CompareSet(key, rng.choice([None, value]), rng.choice([None, value])),
        ops.Delete(key),
        ops.Append(key, value),
        ops.MultiGet((key,) * rng.choice([0, 1, 100])),
        ops.MultiSet(((key, value),) * rng.choice([0, 1, 100]), lease),
        ops.Count(key),
        ops.ListPrefix(key),
        ops.LeaseGrant(rng.choice([1e-9, 0.01, 86_400.0, -1.0, float("nan")])),
        ops.LeaseKeep(lease),
        ops.LeaseRevoke(lease),
    ]
    return rng.choice(choices)


def some_message(rng: random.Random) -> FromClient:
    number = rng.choice([0, 1, 2, 3, rng.getrandbits(64)])
    watch = rng.choice([0, 1, 2, 2**32 - 1])
    messages: list[FromClient] = [
        Hello(SessionId(rng.choice([0, 1, rng.getrandbits(64)])), rng.getrandbits(2), number),
        Cancel(number),
        WatchOpen(watch, rng.random() < 0.5, some_key(rng)),
        WatchClose(watch),
        Ping(),
    ]
    if rng.random() < 0.6:
        return Call(number, rng.choice([0, 1, number]), some_op(rng))
    return rng.choice(messages)


def mutated(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(3):
            case 0:
                found[at : at + 1] = rng.randbytes(1)
            case 1:
                del found[at : at + rng.randint(1, 6)]
            case _:
                found[at:at] = rng.randbytes(rng.randint(1, 6))
    return bytes(found)


def some_bytes(rng: random.Random) -> bytes:
    """Make what one connection sends: mostly frames, of all degrees of nonsense."""
    parts = []
    if rng.random() < 0.8:
        session = SessionId(rng.choice([1, 2, rng.getrandbits(63)]))
        parts.append(encode_frame(encode(Hello(session, 0, 1))))
    for _ in range(rng.randint(1, 8)):
        kind = rng.random()
        if kind < 0.6:
            parts.append(encode_frame(encode(some_message(rng))))
        elif kind < 0.8:
            parts.append(encode_frame(mutated(rng, encode(some_message(rng)))))
        elif kind < 0.9:
            parts.append(encode_frame(rng.randbytes(rng.randint(0, 60))))
        elif kind < 0.95:
            parts.append(struct.pack(">I", rng.choice([FRAME_BYTES_MAX, 2**32 - 1])))
        else:
            parts.append(rng.randbytes(rng.randint(1, 60)))
    return b"".join(parts)


def attack(address: Address, seed: int) -> bool:
    """Be one nonsensical client; say whether the server bore with it to the end."""
    rng = random.Random(seed)
    transport = dial(address)
    try:
        transport._socket.sendall(some_bytes(rng) + encode_frame(encode(Ping())))
        transport._socket.shutdown(socket.SHUT_WR)
        while True:
            for payload in transport.receive(LONG_S):
                if decode_from_server(payload) == Pong():
                    return True
    except (Unavailable, OSError):
        return False
    finally:
        transport.close()


def knock(address: Address, seed: int) -> None:
    """Be an unauthenticated client that sends random bytes."""
    rng = random.Random(seed)
    with socket.create_connection(address, timeout=LONG_S) as stranger:
        try:
            stranger.sendall(
                rng.choice([b"", b"HFST", b"GET "]) + rng.randbytes(rng.randint(1, 90))
            )
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
        except OSError:
            pass  # hung up while we spoke


def memory_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.timeout(300)
def test_a_server_bears_thousands_of_nonsensical_clients(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        server_process(stderr) as (process, address),
        new_client(address) as honest,
        ThreadPoolExecutor(4) as pool,
    ):
        honest.set("honest/steady", b"1")
        with honest.watch("honest/", prefix=True) as watch:
            assert watch.next(LONG_S).value == b"1"
            list(pool.map(lambda seed: attack(address, seed), range(100)))
            before = memory_kib(process.pid)
            attacks = pool.map(lambda seed: attack(address, seed), range(100, SESSIONS))
            knocks = pool.map(lambda seed: knock(address, seed), range(STRANGERS))
            for n in range(300):
                assert honest.add("honest/n") == n + 1
            assert 0 < sum(attacks) < SESSIONS - 100  # some were borne, some not
            list(knocks)
            newest = 0
            while newest < 300:
                value = watch.next(LONG_S).value
                assert value is not None
                assert int(value) > newest
                newest = int(value)
        assert honest.get("honest/steady") == b"1"
        assert memory_kib(process.pid) - before < MEMORY_GROWTH_MAX_KIB
        assert process.poll() is None
    assert "Traceback" not in log.read_text()
