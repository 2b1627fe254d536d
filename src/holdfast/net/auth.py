"""The handshake: both sides prove that they hold the same secret, before anything is parsed.

Rule 1: everything that decides which peers are let in is in this file.
Rule 2: this file does no I/O; nonces are given.

    client                                              server
    HELLO   "HFST" version 0 client-nonce      ──▶
                                               ◀──      HELLO  "HFST" version status server-nonce
    PROOF   HMAC(key, "client" ‖ both hellos)  ──▶
                                               ◀──      VERDICT  status HMAC(key, "server" ‖ both)

The key is derived from a secret and a context: what is spoken afterwards, such as "store". So a
proof for one protocol is worthless for another. Where a client knows which server it means, the
key is for that server alone (`Key.meant_for`). Jobs are told apart by their secrets alone: two
that share one are one job to this file. Every message has a fixed size, so a server holds at most
70 bytes of an unauthenticated peer, and it disconnects at the first byte that is not ours.
A handshake that has failed keeps nothing, and stays failed: a connection has one guess.

Guarantees
    AU-1  No side is satisfied unless the other holds the key: `done` follows a checked proof.
    AU-2  A recorded exchange opens nothing: fresh nonces of both sides are in every proof.
    AU-3  A reflected message opens nothing: the two directions have different labels.
    AU-4  Version and status are under the proof, so no party in between can change them unseen.
    AU-5  Proofs are compared in constant time.
    AU-6  A proof by a key that is meant for one server opens no other server: a handshake that is
          passed on to another holder of the secret fails.
"""

from __future__ import annotations

import hashlib
import hmac
from abc import ABC, abstractmethod
from typing import NoReturn, Self, SupportsIndex

from holdfast.errors import HoldfastError, PeerViolation, Refused, Step

__all__ = ["NONCE_BYTES", "VERSION", "ClientHandshake", "Key", "ServerHandshake", "derive_key"]

MAGIC = b"HFST"
VERSION = 1
NONCE_BYTES = 32
_HELLO_BYTES = len(MAGIC) + 2 + NONCE_BYTES
_PROOF_BYTES = 32
_OK, _REFUSED = 0, 1


class Key(bytes):
    """A derived key. It opens what the secret opens, so it does not show in messages either."""

    group: int | None
    """The number of the group that may hold it, besides this user; None if there is none."""

    def __new__(cls, value: bytes, group: int | None = None) -> Self:
        key = super().__new__(cls, value)
        key.group = group
        return key

    def meant_for(self, server: str) -> Key:
        """Return the key for one server, which is known by a name that no other one has (AU-6)."""
        return Key(hmac.digest(self, b"meant for\0" + server.encode(), hashlib.sha256), self.group)

    def __repr__(self) -> str:
        return "<Key>"

    __str__ = __repr__

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a key cannot be pickled")


def derive_key(secret: bytes, context: str, group: int | None = None) -> Key:
    """Return the key that a secret gives in one context, which names what is spoken."""
    return Key(hmac.digest(secret, b"holdfast key 1\0" + context.encode(), hashlib.sha256), group)


def _hello(status: int, nonce: bytes) -> bytes:
    return MAGIC + bytes((VERSION, status)) + nonce


def _proof(key: bytes, label: bytes, hellos: bytes) -> bytes:
    return hmac.digest(key, label + b"\0" + hellos, hashlib.sha256)


class _Handshake(ABC):
    """What both sides share: the key, what has arrived, and whether it is over."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        self._key = key
        self._nonce = nonce
        self._buffer = b""
        self._hellos = b""
        self._failed = False
        self.done = False
        """True once the other side has proved itself (AU-1)."""

    def receive(self, data: bytes) -> bytes:
        """Take bytes; return bytes to send. Raise PeerViolation or Refused to disconnect."""
        if self._failed:
            raise PeerViolation("the handshake has failed already", step=Step.HANDSHAKE)
        self._buffer += data
        try:
            return self._advance()
        except HoldfastError:
            self._failed = True
            self._buffer = b""
            raise

    @abstractmethod
    def _advance(self) -> bytes:
        """Go as far as what has arrived allows; return bytes to send."""

    def leftover(self) -> bytes:
        """Return what arrived after the handshake's last byte: it belongs to what follows."""
        return self._buffer

    def _take(self, size: int) -> bytes | None:
        if len(self._buffer) < size:
            return None
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken


class ServerHandshake(_Handshake):
    """The server's side. Feed it what arrives and send what it returns."""

    farewell = b""
    """What to send before hanging up after an error, so that the peer can tell what was wrong."""

    def _advance(self) -> bytes:
        answer = b""
        if not self._hellos:
            if not self._buffer.startswith(MAGIC[: len(self._buffer)]):
                raise PeerViolation("the peer does not speak holdfast", step=Step.HANDSHAKE)
            hello = self._take(_HELLO_BYTES)
            if hello is None:
                return b""
            answer = self._answer(hello)
        if not self.done:
            proof = self._take(_PROOF_BYTES)
            if proof is not None:
                answer += self._judge(proof)
        return answer

    def _answer(self, hello: bytes) -> bytes:
        version, status = hello[4], hello[5]
        if version != VERSION:
            self.farewell = _hello(_REFUSED, self._nonce)
            raise PeerViolation(
                f"the peer speaks version {version} of the protocol, we speak {VERSION}",
                step=Step.VERSION,
            )
        if status != _OK:
            raise PeerViolation("the peer's greeting is malformed", step=Step.HANDSHAKE)
        answer = _hello(_OK, self._nonce)
        self._hellos = hello + answer
        return answer

    def _judge(self, proof: bytes) -> bytes:
        if not hmac.compare_digest(proof, _proof(self._key, b"client", self._hellos)):
            self.farewell = bytes((_REFUSED,)) + bytes(_PROOF_BYTES)
            raise Refused(
                "the peer's secret is wrong, or it tried to reach another server", step=Step.SECRET
            )
        self.done = True
        return bytes((_OK,)) + _proof(self._key, b"server", self._hellos)


class ClientHandshake(_Handshake):
    """The client's side. Send `greeting()`, feed it what arrives, send what it returns."""

    def greeting(self) -> bytes:
        """Return the first bytes of the connection."""
        return _hello(_OK, self._nonce)

    def _advance(self) -> bytes:
        if not self._hellos:
            if not self._buffer.startswith(MAGIC[: len(self._buffer)]):
                raise PeerViolation(
                    f"the server does not speak holdfast: it answered {self._buffer[:16]!r}",
                    step=Step.HANDSHAKE,
                )
            hello = self._take(_HELLO_BYTES)
            return b"" if hello is None else self._prove(hello)
        if not self.done:
            verdict = self._take(1 + _PROOF_BYTES)
            if verdict is not None:
                self._check(verdict)
        return b""

    def _prove(self, hello: bytes) -> bytes:
        version, status = hello[4], hello[5]
        if version != VERSION:
            raise PeerViolation(
                f"the server speaks version {version} of the protocol, we speak {VERSION}",
                step=Step.VERSION,
            )
        if status != _OK:
            raise PeerViolation("the server's greeting is malformed", step=Step.HANDSHAKE)
        self._hellos = self.greeting() + hello
        return _proof(self._key, b"client", self._hellos)

    def _check(self, verdict: bytes) -> None:
        if verdict[0] != _OK:
            raise Refused("the server refused our secret: it holds another one", step=Step.SECRET)
        if not hmac.compare_digest(verdict[1:], _proof(self._key, b"server", self._hellos)):
            raise Refused("the server could not prove that it holds our secret", step=Step.SECRET)
        self.done = True
