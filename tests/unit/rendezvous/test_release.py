"""What a node releases: the others are waited for, or not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.clock import Deadline
from holdfast.ids import NodeId, RunId
from holdfast.rendezvous.model import Announcement, Keys, Phase
from holdfast.rendezvous.port import HeldPort
from holdfast.rendezvous.release import MeetingStore, Release
from holdfast.store.memory import MemoryStore

KEYS = Keys(RunId("job"))
LONG_S = 60.0


@pytest.fixture
def release() -> Iterator[Release]:
    held, store = HeldPort("127.0.0.1"), MemoryStore()
    yield Release(MeetingStore(store, None), held)
    store.close()
    held.close()


def announce(release: Release, phase: Phase) -> None:
    node = Announcement(NodeId("a"), "host", "127.0.0.1", 1, phase, 0, None, "")
    release.place.store.set(f"{KEYS.nodes}a", node.encode())


def test_a_node_that_hosts_nothing_waits_for_none(release: Release) -> None:
    announce(release, Phase.WAITING)
    assert release(KEYS, Deadline.after(LONG_S))


def test_others_are_waited_for_until_they_left_or_something_else_is_to_be_done(
    release: Release,
) -> None:
    announce(release, Phase.WAITING)
    assert not release._wait_alone(KEYS, Deadline.after(0.2), lambda: False)
    assert not release._wait_alone(KEYS, Deadline.after(LONG_S), lambda: True)
    announce(release, Phase.LEFT)
    assert release._wait_alone(KEYS, Deadline.after(LONG_S), lambda: False)


def test_a_store_that_cannot_be_read_is_waited_for_no_longer(release: Release) -> None:
    release.place.store.close()
    assert not release._wait_alone(KEYS, Deadline.after(LONG_S), lambda: False)
