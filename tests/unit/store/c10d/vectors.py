"""Recorded exchanges of torch's TCPStore protocol: one connection, a fresh store, in this order.

Recorded between torch 2.13's client and server; both sides of holdfast are held to them.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.store.c10d import messages as c10d

__all__ = ["VECTORS", "Vector"]


class Vector(NamedTuple):
    """What is sent, what it means, and what comes back."""

    what: str
    sent: bytes
    requests: tuple[c10d.Request, ...]
    reply: bytes


def _vector(what: str, sent: str, reply: str, *requests: c10d.Request) -> Vector:
    return Vector(what, bytes.fromhex(sent), requests, bytes.fromhex(reply))


VECTORS = (
    _vector("validate", "00cef7853c", "", c10d.Validate()),
    _vector("ping", "0d01020304", "01020304", c10d.Ping(0x04030201)),
    _vector(
        "add init/ +1",
        "040500000000000000696e69742f0100000000000000",
        "0100000000000000",
        c10d.Add(b"init/", 1),
    ),
    _vector("list keys", "11", "01000000000000000500000000000000696e69742f", c10d.ListKeys()),
    _vector("set", "0102000000000000002f6b010000000000000076", "", c10d.Set(b"/k", b"v")),
    _vector("wait", "06010000000000000002000000000000002f6b", "00", c10d.Wait((b"/k",))),
    _vector("get", "0302000000000000002f6b", "010000000000000076", c10d.Get(b"/k")),
    _vector(
        "compare_set that creates",
        "0202000000000000002f630000000000000000010000000000000078",
        "010000000000000078",
        c10d.CompareSet(b"/c", b"", b"x"),
    ),
    _vector(
        "compare_set of an absent key",
        "0205000000000000002f6e6f706501000000000000007101000000000000007a",
        "010000000000000071",
        c10d.CompareSet(b"/nope", b"q", b"z"),
    ),
    _vector(
        "add 5",
        "0402000000000000002f6e0500000000000000",
        "0500000000000000",
        c10d.Add(b"/n", 5),
    ),
    _vector(
        "add -7",
        "0402000000000000002f6ef9ffffffffffffff",
        "feffffffffffffff",
        c10d.Add(b"/n", -7),
    ),
    _vector(
        "check",
        "05020000000000000002000000000000002f6b03000000000000002f7a7a",
        "01",
        c10d.Check((b"/k", b"/zz")),
    ),
    _vector(
        "wait, cancelled",
        "06010000000000000003000000000000002f7a7a0c",
        "01",
        c10d.Wait((b"/zz",)),
        c10d.CancelWait(),
    ),
    _vector("number of keys", "07", "0400000000000000", c10d.NumKeys()),
    _vector("delete", "0802000000000000002f6e", "0100000000000000", c10d.Delete(b"/n")),
    _vector("append", "0902000000000000002f6b010000000000000077", "", c10d.Append(b"/k", b"w")),
    _vector(
        "multi_set",
        "0b020000000000000002000000000000002f6101000000000000003102000000000000002f62"
        "02000000000000003232",
        "",
        c10d.MultiSet(((b"/a", b"1"), (b"/b", b"22"))),
    ),
    _vector(
        "multi_get",
        "0a020000000000000002000000000000002f6102000000000000002f62",
        "01000000000000003102000000000000003232",
        c10d.MultiGet((b"/a", b"/b")),
    ),
    _vector("push", "0e02000000000000002f7101000000000000006a", "", c10d.QueuePush(b"/q", b"j")),
    _vector(
        "push again", "0e02000000000000002f7102000000000000006a6a", "", c10d.QueuePush(b"/q", b"jj")
    ),
    _vector("queue length", "1002000000000000002f71", "0200000000000000", c10d.QueueLen(b"/q")),
    _vector(
        "pop",
        "0f02000000000000002f71",
        "020000000000000001000000000000006a",
        c10d.QueuePop(b"/q"),
    ),
    _vector(
        "pop twice",
        "0f02000000000000002f710f02000000000000002f71",
        "010000000000000002000000000000006a6a0000000000000000",
        c10d.QueuePop(b"/q"),
        c10d.QueuePop(b"/q"),
    ),
    _vector(
        "barrier of one", "1202000000000000002f7a0100000000000000", "00", c10d.Barrier(b"/z", 1)
    ),
    _vector(
        "barrier of two, cancelled",
        "1202000000000000002f7902000000000000000c",
        "01",
        c10d.Barrier(b"/y", 2),
        c10d.CancelWait(),
    ),
)
