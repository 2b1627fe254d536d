"""Remote references between three real processes: passed on, given back, dropped, killed."""

from __future__ import annotations

import gc
import operator
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from holdfast.clock import Deadline
from holdfast.errors import CallTimedOut, PeerLost, ReferenceFailed, UsageError
from holdfast.rpc import api
from holdfast.rpc.current import current_agent
from holdfast.rpc.rref.rref import RRef
from tests.e2e import rref_worker as there

ROOT = Path(__file__).parents[2]


class Workers:
    """This process is w0; w1 and w2 are others."""

    def __init__(self, endpoint: str, undo: ExitStack) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for rank in (1, 2):
            command = [sys.executable, "-m", there.__name__, endpoint, f"w{rank}", str(rank)]
            path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
            )
            self.processes[f"w{rank}"] = process
            undo.callback(self.kill, f"w{rank}")
        undo.enter_context(there.joined(endpoint, "w0", 0))
        for name in self.processes:
            assert api.rpc_sync(name, there.wait_ready)

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def nothing_left(self, *names: str) -> None:
        for name in names or ("w0", "w1", "w2"):
            left = there.empty() if name == "w0" else api.rpc_sync(name, there.empty)
            assert left == {}, name


@pytest.fixture
def workers() -> Iterator[Workers]:
    with ExitStack() as undo:
        server = undo.enter_context(holdfast.serve_store())
        made = Workers(server.endpoint, undo)
        yield made
        there.kept.clear()


def test_a_value_is_made_fetched_passed_on_given_back_and_freed(workers: Workers) -> None:
    rref = api.remote("w1", operator.add, args=(2, 3))
    assert rref.to_here() == 5
    assert (rref.is_owner(), rref.owner_name()) == (False, "w1")
    with pytest.raises(UsageError, match="lives at"):
        rref.local_value()
    # A fork, a fork of a fork, and back to where it lives.
    assert api.rpc_sync("w2", there.use, args=(rref,)) == 5
    assert api.rpc_sync("w2", there.pass_on, args=(rref, "w1")) == 5
    assert api.rpc_sync("w2", there.pass_on, args=(rref, "w0")) == 5
    assert api.rpc_sync("w1", there.look, args=(rref,)) == (True, "w1", 5)
    again = api.rpc_sync("w1", there.give_back, args=(rref,))
    assert again.to_here() == 5
    del rref, again
    gc.collect()
    workers.nothing_left()


def test_a_value_lives_as_long_as_its_last_reference(workers: Workers) -> None:
    rref: RRef[dict[str, int]] = api.remote("w1", dict, args=([("a", 1)],))
    api.rpc_sync("w2", there.keep_at, args=(rref, "w1", "own"))
    api.rpc_sync("w2", there.keep, args=("user", rref))
    del rref
    gc.collect()
    workers.nothing_left("w0")
    assert api.rpc_sync("w2", there.use_kept, args=("user",)) == {"a": 1}
    api.rpc_sync("w2", there.drop, args=("user",))
    workers.nothing_left("w2")
    assert api.rpc_sync("w1", there.use_kept, args=("own",)) == {"a": 1}
    assert api.rpc_sync("w1", there.counts)["owners"] == 1
    api.rpc_sync("w1", there.drop, args=("own",))
    workers.nothing_left()


def test_a_value_of_ones_own_travels_too(workers: Workers) -> None:
    mine = RRef([1, 2])
    assert mine.is_owner()
    assert mine.local_value() is mine.to_here()
    assert api.rpc_sync("w2", there.pass_on, args=(mine, "w1")) == [1, 2]
    assert api.rpc_sync("w0", there.use, args=(mine,)) == [1, 2]
    made = api.rpc_sync("w1", there.make, args=("theirs",))
    assert made.to_here() == "theirs"
    itself = api.remote("w0", operator.add, args=(1, 1))
    assert itself.is_owner()
    assert itself.local_value() == 2
    assert api.rpc_sync("w2", there.pass_on, args=(itself, "w0")) == 2
    del mine, made, itself
    gc.collect()
    workers.nothing_left()


def test_methods_are_called_where_the_value_lives(workers: Workers) -> None:
    for _ in range(30):
        # Right after the creation, which they may overtake.
        rref: RRef[list[int]] = api.remote("w1", list, args=((1, 2),))
        assert rref.rpc_sync().index(2) == 1
        assert rref.rpc_async().count(1).wait() == 1
        assert rref.remote().copy().to_here() == [1, 2]
        del rref
    gc.collect()
    workers.nothing_left()


def test_a_creation_that_failed_raises_where_it_is_asked_for(workers: Workers) -> None:
    rref = api.remote("w1", there.fail)
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        rref.to_here()
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        api.rpc_sync("w2", there.use, args=(rref,))
    del rref
    gc.collect()
    workers.nothing_left()


@pytest.mark.parametrize("why", ["late", "late, and no thread waits", "broken"])
def test_references_of_an_answer_that_is_not_read_are_freed(workers: Workers, why: str) -> None:
    theirs = api.remote("w2", operator.add, args=(2, 3))
    given = (theirs, RRef("mine"))
    if why == "late":
        with pytest.raises(CallTimedOut):
            api.rpc_sync("w1", there.make_late, args=given, timeout=0.3)
    else:
        call = api.rpc_async("w1", there.make_late, args=given, timeout=0.3)
        if why == "broken":
            current_agent().peer("w1").reset("on purpose")
        with pytest.raises(PeerLost if why == "broken" else CallTimedOut):
            call.wait()
    api.rpc_sync("w1", there.let_go_on)
    del theirs, given
    gc.collect()
    workers.nothing_left()


def test_what_a_killed_user_held_is_freed(workers: Workers) -> None:
    rref = api.remote("w1", operator.add, args=(2, 3))
    api.rpc_sync("w2", there.keep, args=("user", rref))
    mine = RRef("mine")
    api.rpc_sync("w2", there.keep, args=("other", mine))
    del rref, mine
    gc.collect()
    assert there.counts()["owners"] == 1
    workers.kill("w2")
    workers.nothing_left("w0", "w1")


def test_a_reference_is_useless_when_its_owner_was_killed(workers: Workers) -> None:
    rref = api.remote("w1", operator.add, args=(2, 3))
    api.rpc_sync("w2", there.keep, args=("user", rref))
    workers.kill("w1")
    for _ in range(2):
        with pytest.raises((PeerLost, ReferenceFailed)):
            rref.to_here()
    with pytest.raises((PeerLost, ReferenceFailed)):
        api.rpc_sync("w2", there.use_kept, args=("user",))
    api.rpc_sync("w2", there.drop, args=("user",))
    del rref
    gc.collect()
    workers.nothing_left("w0", "w2")
    assert current_agent().rrefs.wait_answered(Deadline.after(there.WITHIN_S).remaining)
