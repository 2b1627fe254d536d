"""What the other nodes of a round report is read until the watch is closed."""

from __future__ import annotations

import threading

import pytest

from holdfast.agent.exchange import publish, watch_reports
from holdfast.agent.inputs import PeerTold
from holdfast.agent.report_reader import read_reports
from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.store.memory import MemoryStore
from tests.unit.agent.stories import failure
from tests.unit.agent.test_run_writer import a_round
from tests.waiting import until


def test_reports_of_others_are_posted(caplog: pytest.LogCaptureFixture) -> None:
    store, posted = MemoryStore(), list[PeerTold]()
    here = a_round(store)
    watch = watch_reports(here, Deadline.after(30.0))
    reader = threading.Thread(
        target=read_reports, args=("job", here, watch, posted.append, SYSTEM_CLOCK)
    )
    reader.start()
    store.set("3/failed/1", b"nonsense")
    until(lambda: "run job: node 1: not JSON" in caplog.text)
    publish(here, (failure(0),), False, SYSTEM_CLOCK.wall(), Deadline.after(30.0))  # our own
    told = b'{"final":true,"failures":[]}'
    store.set("3/failed/1", told)
    until(lambda: posted == [PeerTold(3, 1, (), True)])
    watch.close()
    reader.join(30.0)
    assert not reader.is_alive()
    store.close()
