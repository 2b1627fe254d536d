"""The entry of a worker in the store, as bytes and back."""

from __future__ import annotations

import json
from dataclasses import asdict

from holdfast.errors import PeerViolation
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["decode_entry", "encode_entry"]


def encode_entry(contact: Contact) -> bytes:
    """Return the entry that says where a worker is."""
    return json.dumps(asdict(contact)).encode()


def decode_entry(data: bytes) -> Contact:
    """Read an entry; PeerViolation if it is invalid."""
    try:
        plain = json.loads(data)
        info = WorkerInfo(**plain.pop("info"))
        return Contact(info=info, **plain)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise PeerViolation(f"entry of a worker: {data[:60]!r} is malformed") from None
