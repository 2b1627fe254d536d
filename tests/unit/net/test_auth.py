"""The handshake against peers without the secret: none is ever admitted."""

from __future__ import annotations

import hmac
import pickle
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError, PeerViolation, Refused, Step
from holdfast.net import auth
from holdfast.net.auth import NONCE_BYTES, VERSION, ClientHandshake, ServerHandshake, derive_key

SECRET = b"a secret that only two know"
KEY = derive_key(SECRET, "store")
OTHER_KEY = derive_key(b"another secret, of somebody else", "store")
CLIENT_NONCE = bytes(range(NONCE_BYTES))
SERVER_NONCE = bytes(range(100, 100 + NONCE_BYTES))
HELLO_BYTES, PROOF_BYTES = 38, 32
STRANGER_BYTES_MAX = 70


def server(key: bytes = KEY, nonce: bytes = SERVER_NONCE) -> ServerHandshake:
    return ServerHandshake(key, nonce)


def client(key: bytes = KEY, nonce: bytes = CLIENT_NONCE) -> ClientHandshake:
    return ClientHandshake(key, nonce)


@dataclass(frozen=True)
class Exchange:
    """The four messages of one handshake."""

    hello: bytes
    answer: bytes
    proof: bytes
    verdict: bytes


def record(key: bytes = KEY, client_nonce: bytes = CLIENT_NONCE) -> Exchange:
    """Let two that hold the same key shake hands, and note what they say."""
    near, far = client(key, client_nonce), server(key)
    hello = near.greeting()
    answer = far.receive(hello)
    proof = near.receive(answer)
    verdict = far.receive(proof)
    assert near.receive(verdict) == b""
    assert near.done
    assert far.done
    return Exchange(hello, answer, proof, verdict)


GOOD = record()


def refused_by(machine: ServerHandshake | ClientHandshake, *parts: bytes) -> HoldfastError | None:
    """Feed a machine until it hangs up; return why, or None if it still waits. Never done."""
    try:
        for part in parts:
            machine.receive(part)
    except HoldfastError as error:
        assert not machine.done
        assert machine.leftover() == b""
        return error
    assert not machine.done
    return None


def flips(message: bytes) -> list[bytes]:
    """Every message with one byte changed: one bit of it, and all of them."""
    return [
        message[:offset] + bytes((message[offset] ^ mask,)) + message[offset + 1 :]
        for offset in range(len(message))
        for mask in (0x01, 0x80, 0xFF)
    ]


# Among friends.


def test_sizes_are_fixed() -> None:
    assert len(GOOD.hello) == len(GOOD.answer) == HELLO_BYTES
    assert len(GOOD.proof) == PROOF_BYTES
    assert len(GOOD.verdict) == 1 + PROOF_BYTES


def test_byte_by_byte_works_on_both_sides() -> None:
    far = server()
    said = b"".join(far.receive(bytes((byte,))) for byte in GOOD.hello + GOOD.proof)
    assert far.done
    assert said == GOOD.answer + GOOD.verdict
    near = client()
    near.greeting()
    said = b"".join(near.receive(bytes((byte,))) for byte in GOOD.answer + GOOD.verdict)
    assert near.done
    assert said == GOOD.proof


@given(st.data())
def test_any_cutting_works(data: st.DataObject) -> None:
    stream = GOOD.hello + GOOD.proof + b"first frames"
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    far = server()
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    said = b"".join(map(far.receive, parts))
    assert far.done
    assert said == GOOD.answer + GOOD.verdict
    assert far.leftover() == b"first frames"


def test_what_comes_after_the_handshake_is_left_over_for_what_follows() -> None:
    near = client()
    near.greeting()
    near.receive(GOOD.answer)
    near.receive(GOOD.verdict + b"frames")
    assert near.leftover() == b"frames"
    near.receive(b" and more")
    assert near.leftover() == b"frames and more"


# A peer without the secret: AU-1. Every byte of each message matters.


def test_what_comes_later_is_left_over_too() -> None:
    machine = server()
    for part in (GOOD.hello, GOOD.proof):
        machine.receive(part)
    assert machine.done
    assert machine.receive(b"more") == b""
    assert machine.leftover() == b"more"


def test_the_server_refuses_a_changed_hello() -> None:
    for hello in flips(GOOD.hello):
        assert refused_by(server(), hello, GOOD.proof) is not None


def test_the_server_refuses_a_changed_proof() -> None:
    for proof in flips(GOOD.proof):
        error = refused_by(server(), GOOD.hello, proof)
        assert isinstance(error, Refused)
        assert error.step is Step.SECRET


def test_the_client_refuses_a_changed_answer() -> None:
    for answer in flips(GOOD.answer):
        near = client()
        near.greeting()
        assert refused_by(near, answer, GOOD.verdict) is not None


def test_the_client_refuses_a_changed_verdict() -> None:
    for verdict in flips(GOOD.verdict):
        near = client()
        near.greeting()
        error = refused_by(near, GOOD.answer, verdict)
        assert isinstance(error, Refused)
        assert error.step is Step.SECRET


def test_a_changed_message_in_between_satisfies_neither_side() -> None:
    """AU-4: a changed byte of either hello breaks the handshake."""
    for answer in flips(GOOD.answer):
        far, near = server(), client()
        far.receive(near.greeting())
        try:
            proof = near.receive(answer)
        except PeerViolation:
            continue
        assert isinstance(refused_by(far, proof), Refused)


def test_a_truncated_exchange_satisfies_neither_side() -> None:
    for end in range(HELLO_BYTES + PROOF_BYTES):
        assert refused_by(server(), (GOOD.hello + GOOD.proof)[:end]) is None
    for end in range(HELLO_BYTES + 1 + PROOF_BYTES):
        near = client()
        near.greeting()
        assert refused_by(near, (GOOD.answer + GOOD.verdict)[:end]) is None


def test_a_byte_left_out_satisfies_no_server() -> None:
    said = GOOD.hello + GOOD.proof
    for gap in range(len(said)):
        assert refused_by(server(), said[:gap] + said[gap + 1 :] + b"\0") is not None


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_satisfy_a_server(first: bytes, second: bytes) -> None:
    error = refused_by(server(), first, second)
    if len(first + second) >= HELLO_BYTES + PROOF_BYTES:
        assert error is not None
    assert error is None or isinstance(error, (PeerViolation, Refused))


@given(st.binary(max_size=200))
def test_no_proof_satisfies_a_server(guess: bytes) -> None:
    error = refused_by(server(), GOOD.hello, guess)
    assert (error is not None) == (len(guess) >= PROOF_BYTES)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_satisfy_a_client(first: bytes, second: bytes) -> None:
    near = client()
    near.greeting()
    error = refused_by(near, first, second)
    assert error is None or isinstance(error, (PeerViolation, Refused))


# Replay (AU-2), reflection (AU-3), and other people's secrets.


def nonces() -> list[bytes]:
    """Nonces that are not those of the recording, most of them by one bit only."""
    return [*flips(SERVER_NONCE), *(bytes((number,)) * NONCE_BYTES for number in range(256))]


def test_a_replayed_client_is_refused() -> None:
    for nonce in nonces():
        error = refused_by(server(nonce=nonce), GOOD.hello, GOOD.proof)
        assert isinstance(error, Refused)


def test_a_replayed_server_is_refused() -> None:
    for nonce in nonces():
        near = client(nonce=nonce)
        near.greeting()
        assert isinstance(refused_by(near, GOOD.answer, GOOD.verdict), Refused)


def test_a_reflected_client_is_refused() -> None:
    """A client that is sent its own messages back is not satisfied."""
    near = client()
    hello = near.greeting()
    proof = near.receive(hello)  # looks like a server's greeting
    for status in (b"\0", b"\1"):
        mirror = client()
        mirror.receive(mirror.greeting())
        assert isinstance(refused_by(mirror, status + proof), Refused)


def test_a_reflected_server_is_refused() -> None:
    """A peer that mirrors the server's answers is not let in."""
    far = server()
    answer = far.receive(GOOD.hello)
    assert isinstance(refused_by(far, answer[:PROOF_BYTES]), Refused)


def test_a_second_server_does_not_help_to_open_the_first() -> None:
    """A server's proof from one connection is worth nothing as a client's on another."""
    far = server()
    far.receive(GOOD.hello)
    assert isinstance(refused_by(far, GOOD.verdict[1:]), Refused)


def test_roles_are_not_interchangeable() -> None:
    near = client()
    near.greeting()
    assert isinstance(refused_by(near, GOOD.answer, b"\0" + GOOD.proof), Refused)


@pytest.mark.parametrize(
    "key",
    [
        OTHER_KEY,
        derive_key(SECRET, "rpc"),
        derive_key(SECRET, ""),
        derive_key(SECRET, "store "),
        derive_key(SECRET + b".", "store"),
        KEY.meant_for("somebody"),
        SECRET,
        b"",
        bytes(32),
    ],
)
def test_another_secret_or_another_context_is_refused_by_both_sides(key: bytes) -> None:
    far = server()
    stranger = client(key)
    proof = stranger.receive(far.receive(stranger.greeting()))
    error = refused_by(far, proof)
    assert isinstance(error, Refused)
    assert error.step is Step.SECRET
    assert refused_by(stranger, far.farewell) is not None  # and it is told so

    # A server without our secret cannot judge our proof, but it can claim that all is well.
    claim = b"\0" + auth._proof(key, b"server", GOOD.hello + GOOD.answer)
    near = client()
    near.greeting()
    error = refused_by(near, GOOD.answer, claim)
    assert isinstance(error, Refused)
    assert "could not prove" in str(error)


def test_a_key_depends_on_secret_and_context_and_shows_neither() -> None:
    keys = {derive_key(s, c) for s in (SECRET, b"x" * 16) for c in ("store", "rpc", "")}
    assert len(keys) == 6
    assert KEY.find(SECRET) < 0
    assert KEY.find(b"store") < 0


def test_a_handshake_that_is_passed_on_opens_no_other_server() -> None:
    """AU-6: between holders of one secret, also with a relay in between."""
    near = client(KEY.meant_for("one"))
    one, other = server(KEY.meant_for("one")), server(KEY.meant_for("other"))
    error = refused_by(other, near.receive(other.receive(near.greeting())))
    assert isinstance(error, Refused)
    assert not near.done
    near = client(KEY.meant_for("one"))
    verdict = one.receive(near.receive(one.receive(near.greeting())))
    near.receive(verdict)
    assert near.done
    assert one.done


def test_a_key_remembers_which_group_may_hold_it() -> None:
    assert KEY.group is None
    assert KEY.meant_for("one").group is None
    shared = derive_key(SECRET, "store", 4242)
    assert (shared, shared.group) == (KEY, 4242)
    assert shared.meant_for("one").group == 4242


def test_a_key_does_not_show_where_locals_are_shown() -> None:
    shown = {repr(KEY), str(KEY), f"{KEY}", f"{KEY!r}"}
    assert shown == {"<Key>"}
    assert repr([KEY]) == "[<Key>]"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_key_cannot_be_pickled(protocol: int) -> None:
    with pytest.raises(TypeError, match="a key cannot be pickled"):
        pickle.dumps([KEY], protocol)


# Versions.


def with_version(message: bytes, version: int) -> bytes:
    return message[:4] + bytes((version,)) + message[5:]


@pytest.mark.parametrize("version", [0, VERSION + 1, 255])
def test_a_client_of_another_version_is_told_ours(version: int) -> None:
    far = server()
    error = refused_by(far, with_version(GOOD.hello, version))
    assert isinstance(error, PeerViolation)
    assert error.step is Step.VERSION
    assert str(error) == f"the peer speaks version {version} of the protocol, we speak {VERSION}"
    near = client()
    near.greeting()
    told = refused_by(near, with_version(far.farewell, version))
    assert isinstance(told, PeerViolation)
    assert told.step is Step.VERSION
    assert f"version {version}" in str(told)


@pytest.mark.parametrize(("near_version", "far_version"), [(1, 2), (2, 1)])
def test_a_newer_side_cannot_be_talked_down_nor_an_older_one_up(
    near_version: int, far_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay makes both sides believe that the other speaks their version."""
    monkeypatch.setattr(auth, "VERSION", near_version)
    near = client()
    hello = near.greeting()
    monkeypatch.setattr(auth, "VERSION", far_version)
    far = server()
    answer = far.receive(with_version(hello, far_version))
    monkeypatch.setattr(auth, "VERSION", near_version)
    proof = near.receive(with_version(answer, near_version))
    monkeypatch.setattr(auth, "VERSION", far_version)
    assert isinstance(refused_by(far, proof), Refused)


@pytest.mark.parametrize("status", [1, 2, 255])
def test_a_greeting_with_a_status_that_makes_no_sense_is_malformed(status: int) -> None:
    for machine, hello in ((server(), GOOD.hello), (client(), GOOD.answer)):
        error = refused_by(machine, hello[:5] + bytes((status,)) + hello[6:])
        assert isinstance(error, PeerViolation)
        assert error.step is Step.HANDSHAKE
        assert "malformed" in str(error)


# Other protocols, and what an unauthenticated peer can make us keep.

OTHERS = {
    "http": b"GET / HTTP/1.1\r\n",
    "tls": bytes.fromhex("1603010200010001fc0303"),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "nearly": b"HFSX",
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_protocol_is_refused_at_the_first_wrong_byte(name: str) -> None:
    wrong = next(i for i, byte in enumerate(OTHERS[name]) if byte != b"HFST"[i]) + 1
    for machine in (server(), client()):
        error = refused_by(machine, *(bytes((byte,)) for byte in OTHERS[name][:wrong]))
        assert isinstance(error, PeerViolation)
        assert error.step is Step.HANDSHAKE


def test_a_client_says_what_a_foreign_server_answered() -> None:
    near = client()
    near.greeting()
    error = refused_by(near, b"HTTP/1.1 400 Bad Request\r\n")
    assert str(error) == "the server does not speak holdfast: it answered b'HTTP/1.1 400 Bad'"


def held(machine: ServerHandshake) -> int:
    """The bytes of an unauthenticated peer that a server keeps."""
    return len(machine._buffer) + (HELLO_BYTES if machine._hellos else 0)


def test_a_server_holds_at_most_seventy_bytes_of_an_unauthenticated_client() -> None:
    one_read = bytes(256 * 1024)
    said = GOOD.hello + GOOD.proof[:-1]
    for end in range(len(said) + 1):
        far = server()
        far.receive(said[:end])
        assert held(far) <= STRANGER_BYTES_MAX
        with pytest.raises(HoldfastError):
            far.receive(said[end:] + b"?" + one_read)
        assert held(far) <= STRANGER_BYTES_MAX


def test_a_failed_handshake_stays_failed() -> None:
    """One connection is one guess: the right proof after a wrong one comes too late."""
    far = server()
    assert refused_by(far, GOOD.hello, bytes(PROOF_BYTES)) is not None
    for late in (GOOD.proof, GOOD.hello, b""):
        with pytest.raises(PeerViolation, match="failed already"):
            far.receive(late)
        assert not far.done
        assert held(far) <= STRANGER_BYTES_MAX
    near = client()
    near.greeting()
    assert refused_by(near, GOOD.answer, b"\1" + bytes(PROOF_BYTES)) is not None
    with pytest.raises(PeerViolation):
        near.receive(GOOD.verdict)


def test_every_proof_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """AU-5: neither side looks at a proof in any other way."""
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def note(given: bytes, expected: bytes) -> bool:
        compared.append((given, expected))
        return compare(given, expected)

    monkeypatch.setattr(hmac, "compare_digest", note)
    record()
    wrong = replace(GOOD, proof=bytes(PROOF_BYTES), verdict=bytes(1 + PROOF_BYTES))
    assert refused_by(server(), wrong.hello, wrong.proof) is not None
    assert refused_by(client(), wrong.answer, wrong.verdict) is not None
    assert [given for given, _ in compared] == [
        GOOD.proof,
        GOOD.verdict[1:],
        wrong.proof,
        wrong.verdict[1:],
    ]
