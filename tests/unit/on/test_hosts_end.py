"""How a job on several hosts ends."""

from __future__ import annotations

import pytest

from holdfast.on.hosts_end import CLOSE_AFTER_S, GRACE_S, LOST, HostsEnd, Todo

ABC = ("a", "b", "c")


def test_all_is_well() -> None:
    ends = HostsEnd(ABC, 3)
    for host in (2, 0, 1):
        assert not ends.is_over
        assert ends.ended(host, 0, 1.0) == Todo()
        assert ends.next_at() is None
    assert ends.is_over
    assert ends.code() == 0


def test_oh3_the_first_code_counts() -> None:
    ends = HostsEnd(ABC, 3)
    assert ends.ended(1, 7, 1.0) == Todo()
    assert ends.ended(0, 69, 1.1) == Todo()
    assert ends.ended(2, 7, 1.2) == Todo()
    assert ends.code() == 7


@pytest.mark.parametrize("status", [2, 126, 127, LOST])
def test_oh2_a_host_that_never_took_part_ends_the_job_at_once(status: int) -> None:
    ends = HostsEnd(ABC, 3)
    told = ends.ended(1, status, 5.0).lines
    assert ends.next_at() == 5.0
    assert ends.passed(5.0) == Todo(("2 of at least 3 hosts are left: the job ends",), stop=True)
    assert ends.next_at() == 5.0 + CLOSE_AFTER_S
    assert ends.passed(6.0) == Todo()
    assert ends.passed(5.0 + CLOSE_AFTER_S) == Todo(close=True)
    ends.ended(0, 143, 7.0)
    ends.ended(2, 143, 7.0)
    assert ends.code() == {LOST: 69}.get(status, status)
    assert bool(told) == (status != 2)


def test_oh2_others_may_end_by_themselves() -> None:
    ends = HostsEnd(ABC, 3)
    ends.ended(0, 1, 5.0)
    assert ends.next_at() == 5.0 + GRACE_S
    assert ends.passed(4.9 + GRACE_S) == Todo()
    ends.ended(1, 1, 6.0)  # does not give them more time
    assert ends.passed(5.0 + GRACE_S).stop


def test_oh1_a_job_goes_on_without_a_host() -> None:
    ends = HostsEnd(ABC, 2)
    assert ends.ended(2, LOST, 1.0).lines == ("c: the connection is lost, or its agent was killed",)
    assert ends.next_at() is None
    ends.ended(0, 0, 2.0)
    ends.ended(1, 0, 2.0)
    assert ends.code() == 0


def test_hosts_that_are_done_count_as_there() -> None:
    ends = HostsEnd(ABC, 3)
    ends.ended(0, 0, 1.0)
    ends.ended(1, 0, 1.0)
    ends.ended(2, LOST, 1.0)
    assert ends.code() == 69
    ends = HostsEnd(ABC, 2)
    ends.ended(0, 0, 1.0)
    ends.ended(1, 9, 1.0)
    assert ends.next_at() is None  # one is done, and one is left


def test_oh3_a_signal_of_the_user_counts() -> None:
    ends = HostsEnd(ABC, 3)
    ends.signalled(2)
    ends.signalled(15)
    for host in range(3):
        assert ends.ended(host, LOST if host else 130, 1.0) == Todo()
    assert ends.next_at() is None
    assert ends.code() == 130


def test_a_signal_that_came_too_late_changes_nothing() -> None:
    ends = HostsEnd(ABC, 3)
    ends.signalled(2)
    for host in range(3):
        ends.ended(host, 0, 1.0)
    assert ends.code() == 0
