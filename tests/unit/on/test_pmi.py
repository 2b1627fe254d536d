"""Questions to Hydra, here answered by a thread that speaks as Hydra does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.errors import PeerViolation, TimeoutExpired
from holdfast.on.mpi import Hydra, Shared
from holdfast.on.pmi import share

ANSWERS = {
    "init": "response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_my_kvsname": "my_kvsname kvsname=kvs_1 rc=0",
    "put": "put_result rc=0 msg=success",
    "barrier_in": "barrier_out rc=0",
    "finalize": "finalize_ack rc=0",
}


@contextmanager
def launcher(answers: dict[str, str]) -> Iterator[tuple[socket.socket, list[str]]]:
    """Answer as Hydra does: `put` is remembered for `get`."""
    ours, theirs = socket.socketpair()
    asked: list[str] = []
    kept: dict[str, str] = {"holdfast-host": "a", "holdfast-secret": "s"}

    def answer() -> None:
        for line in theirs.makefile("r"):
            words = dict(word.partition("=")[::2] for word in line.split())
            asked.append(words["cmd"])
            if words["cmd"] == "put":
                kept[words["key"]] = words["value"]
            text = answers.get(
                words["cmd"], f"get_result rc=0 value={kept.get(words.get('key', ''))}"
            )
            theirs.sendall(f"cmd={text}\n".encode())

    thread = threading.Thread(target=answer)
    thread.start()
    with theirs:
        with ours:
            yield ours, asked
        thread.join()


@pytest.mark.parametrize(("rank", "told"), [(0, ("h0", "made")), (1, ("a", "s"))])
def test_rank_0_gives_and_all_get(rank: int, told: tuple[str, str]) -> None:
    with launcher(ANSWERS) as (ours, asked):
        known = Hydra(ours.fileno(), rank, 2, "")
        shared, secret = share(known, "h0", "made")
    assert (shared, secret) == (Shared("kvs_1", told[0]), told[1])
    assert asked[-1] == "finalize"
    assert asked.count("put") == (2 if rank == 0 else 0)


def test_an_answer_that_is_none() -> None:
    with (
        launcher(ANSWERS | {"barrier_in": "abort rc=0"}) as (ours, _),
        pytest.raises(PeerViolation, match="not cmd=barrier_out"),
    ):
        share(Hydra(ours.fileno(), 1, 2, ""), "h", "s")


def test_a_launcher_that_is_silent_or_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs, pytest.raises(TimeoutExpired, match="did not answer init"):
            share(Hydra(ours.fileno(), 1, 2, ""), "h", "s", within_s=0.01)
        with pytest.raises(PeerViolation, match="the launcher"):
            share(Hydra(ours.fileno(), 1, 2, ""), "h", "s", within_s=60)
    with pytest.raises(PeerViolation, match="the launcher"):
        share(Hydra(1 << 20, 1, 2, ""), "h", "s", within_s=60)
