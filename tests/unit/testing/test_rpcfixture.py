"""The fixture that gives tests workers of RPC: beside the leak checks, and without them."""

from __future__ import annotations

import operator

import pytest

from holdfast.errors import PeerLost
from holdfast.rpc.api import rpc_sync
from holdfast.testing.rpcfixture import MakeWorld

pytest_plugins = ["pytester"]


def test_a_test_has_workers_that_end_with_it(rpc_world: MakeWorld) -> None:
    world = rpc_world(2)
    assert rpc_sync("worker1", operator.add, (1, 2)) == 3
    world.kill("worker1")
    with pytest.raises(PeerLost):
        rpc_sync("worker1", operator.add, (1, 2))


USERS = """
import os

import pytest

from holdfast import rpc
from holdfast.testing.rpcworld import rpc_workers


class Counter:
    def __init__(self):
        self.count = 0

    def more(self):
        self.count += 1
        return self.count


def test_a_counter_under_faults(rpc_world):
    rpc_world(2, messages_to_fail=["RREF_USER_DELETE"], num_fail_sends=2)
    counter = rpc.remote("worker1", Counter)
    assert [counter.rpc_sync().more() for _ in range(3)] == [1, 2, 3]


@rpc_workers(2)
def test_everywhere(rank):
    assert rpc.rpc_sync(1 - rank, divmod, args=(7, 2)) == (3, 1)


def test_no_workers(rpc_world):
    global kept
    kept = os.pipe()  # no leak checks: they were not asked for
"""


def test_a_project_of_a_user_has_the_fixture_and_nothing_else(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["holdfast.testing.rpcfixture"]')
    pytester.makepyfile(test_counting=USERS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=100)
    result.assert_outcomes(passed=3)


FAILS = """
from holdfast.testing.rpcworld import rpc_workers


class TestClass:
    @rpc_workers(2)
    def test_fails(self, rank):
        assert rank == 0, "one does not like it"
"""


def test_a_test_that_fails_in_a_worker_is_told_by_its_name_and_nothing_of_ours(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_failing=FAILS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=100)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *TestClass.test_fails failed (run *", '*test_failing.py", line *in test_fails']
    )
    result.stdout.no_fnmatch_line("*launcher.py*")
