"""The entry of a worker in the store."""

from __future__ import annotations

import pytest

from holdfast.errors import PeerViolation
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.membership.entry import decode_entry, encode_entry
from holdfast.rpc.wire.worker_info import WorkerInfo


def test_an_entry_is_read_as_it_was_written() -> None:
    contact = Contact(WorkerInfo("a", 1), "life", "machine", "\0unix", "127.0.0.1:1", 3)
    assert decode_entry(encode_entry(contact)) == contact


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"junk",
        b"[]",
        b"{}",
        b'{"info": {}}',
        b'{"info": {"name": "a", "id": 1}}',
        b'{"info": {"name": "", "id": -1}, "incarnation": "", "machine": "", "unix": ""}',
        b"\xff",
    ],
)
def test_a_malformed_entry_is_refused(junk: bytes) -> None:
    with pytest.raises(PeerViolation, match="entry of a worker: .* is malformed"):
        decode_entry(junk)
