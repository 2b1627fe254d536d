"""What clients are told of changes; `test_service.py` has the rest of it."""

from __future__ import annotations

from holdfast.store.messages import Call, Changed, Reply, WatchOpen, WatchSnapshot
from holdfast.store.ops import Change, Set, Wait
from tests.unit.store.service_clients import Clients


def test_sv8_waits_and_watches_are_told_before_the_write_is_answered() -> None:
    clients = Clients()
    for connection in (1, 2):
        clients.join(connection, session=connection)
    (snapshot,) = clients.say(1, WatchOpen(5, True, "k"))
    assert snapshot == WatchSnapshot(5, True, 0, ())
    assert clients.say(1, Call(1, 1, Wait(("k",)))) == []
    answers = clients.say(2, Call(1, 1, Set("k", b"v")))
    assert [type(answer) for answer in answers] == [Reply]
    waited, changed = clients.take(1)
    assert isinstance(waited, Reply)
    assert changed == Changed(5, Change("k", b"v", 1))
