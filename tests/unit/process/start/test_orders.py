"""What the agent orders is what the worker reads."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from holdfast.process.start import child
from holdfast.process.start.orders import send_order, write_order

FIELDS = {"a": "", "b": "x=y\n\\n\x1f\0", "c": "é\udcff😀", "d": " ", "e\nf\\n": "x"}


def test_an_order_survives_every_character() -> None:
    assert child.read_order(write_order(FIELDS)) == FIELDS


def test_an_order_that_is_sent_arrives_with_its_descriptors(tmp_path: Path) -> None:
    order = {**FIELDS, "folder": str(tmp_path)}
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as given:
        send_order(ours, order, FIELDS, [given.fileno()])
        received = child.receive_order(theirs)
        assert received is not None
        (arrived,) = received[2]
        assert os.path.sameopenfile(arrived, given.fileno())
        os.close(arrived)
        assert received[:2] == (order, FIELDS)
        ours.close()
        assert child.receive_order(theirs) is None
