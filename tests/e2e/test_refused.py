"""A live store server against all that it must refuse; docs/security.md has the list."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from holdfast.env import Environment
from holdfast.errors import Refused, Step, UsageError
from holdfast.ids import SessionId
from holdfast.net.address import Address
from holdfast.net.auth import NONCE_BYTES, ClientHandshake
from holdfast.net.frames import FRAME_BYTES_MAX, encode_frame
from holdfast.net.secret import Secret, new_secret
from holdfast.observe.events import ConnectionOpened, ConnectionRefused
from holdfast.observe.sinks import FanOut, LogSink, MemorySink
from holdfast.store import server as module
from holdfast.store.messages import KEY_CONTEXT, Hello, Ping, encode
from holdfast.store.open import open_store, serve_store
from holdfast.store.server import StoreServer
from holdfast.store.store import Store
from holdfast.testing.clock import ManualClock
from tests.e2e import hostile
from tests.e2e.hostile import HELLO_BYTES, KIB, MIB, OTHERS, PROOF_BYTES, REFUSED, hear

SECRET = new_secret()
LOOPBACK = Address("127.0.0.1", 0)
SOON = 30.0
KEY = SECRET.key(KEY_CONTEXT)
GUESSES, GUESSERS = 10_000, 4
SLOW = 500


class Live:
    """A server, what it told, and a client that is allowed in."""

    def __init__(self, server: StoreServer, told: MemorySink, clock: ManualClock) -> None:
        self.server = server
        self.clock = clock
        self._told = told

    def refusals(self) -> list[ConnectionRefused]:
        return [event for event in self._told.events if isinstance(event, ConnectionRefused)]

    def admitted(self) -> int:
        return sum(isinstance(event, ConnectionOpened) for event in self._told.events)

    def client(self) -> Store:
        return open_store(self.server.endpoint, secret=SECRET, timeout=SOON)

    def dial(self) -> socket.socket:
        return socket.create_connection(self.server.address, timeout=SOON)

    def check_served(self) -> None:
        """Check that a client with the secret is served."""
        with self.client() as store:
            store.set("key", b"value")
            assert store.get("key") == b"value"

    def settle(self) -> None:
        """Wait until the server has seen all that was said before.

        It may be in the middle of a round, with events that are older; the next is whole.
        """
        done = threading.Event()
        reactor = self.server._reactor
        assert reactor is not None
        reactor.call_soon(lambda: reactor.call_soon(done.set))
        assert done.wait(SOON)


@contextlib.contextmanager
def serving(*sinks: LogSink) -> Iterator[Live]:
    told, clock = MemorySink(), ManualClock()
    with StoreServer(LOOPBACK, SECRET, sink=FanOut([told, *sinks]), clock=clock) as server:
        yield Live(server, told, clock)


@pytest.fixture
def live() -> Iterator[Live]:
    with serving() as running:
        yield running


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    with hostile.many_descriptors():
        yield


def say(live: Live, data: bytes) -> bytes:
    """Send bytes without a handshake; return what the server sends until it disconnects."""
    return hostile.say(live.dial(), data)


def greeting() -> bytes:
    return hostile.greeting(KEY)


def shake(sock: socket.socket) -> bytes:
    """Shake hands with the right secret; return all that was said to the server."""
    return hostile.shake(sock, KEY)


# No secret, or another one.


def test_a_client_without_a_secret_is_refused(live: Live) -> None:
    """SS-1: frames without a handshake are not handled."""
    frames = encode_frame(encode(Hello(SessionId(1), 0, 0))) + encode_frame(encode(Ping()))
    assert say(live, frames) == b""
    assert live.admitted() == 0
    live.check_served()


def test_a_client_with_another_secret_is_refused_at_once(live: Live) -> None:
    with pytest.raises(Refused, match="the server refused our secret") as caught:
        open_store(live.server.endpoint, secret=new_secret(), timeout=SOON)
    assert caught.value.step is Step.SECRET
    assert caught.value.address == str(live.server.address)
    live.settle()
    assert [refusal.step for refusal in live.refusals()] == [Step.SECRET]
    assert live.admitted() == 0


def test_a_key_of_another_context_is_refused(live: Live) -> None:
    """What the same secret gives for something else does not open the store."""
    with live.dial() as sock:
        machine = ClientHandshake(SECRET.key("rpc"), os.urandom(NONCE_BYTES))
        sock.sendall(machine.greeting())
        sock.sendall(machine.receive(sock.recv(HELLO_BYTES)))
        assert hear(sock) == REFUSED
    assert live.admitted() == 0


def test_ten_thousand_guesses_open_nothing_and_fill_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_clock = ManualClock()
    logger = logging.getLogger("test.refused")
    caplog.set_level(logging.DEBUG, "test.refused")
    wrong: list[bytes] = []

    def guess(live: Live, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(GUESSES // GUESSERS):
            answer = say(live, greeting() + rng.randbytes(PROOF_BYTES))
            if answer != REFUSED:
                wrong.append(answer)

    with serving(LogSink(logger, clock=log_clock)) as live, live.client() as store:
        threads = [threading.Thread(target=guess, args=(live, n)) for n in range(GUESSERS)]
        for thread in threads:
            thread.start()
        served = 0
        while any(thread.is_alive() for thread in threads):
            store.set("key", b"%d" % served)
            assert store.get("key") == b"%d" % served
            served += 1
        for thread in threads:
            thread.join()
        live.settle()
        assert served > 0
        assert wrong == []
        assert live.admitted() == 1
        steps = [refusal.step for refusal in live.refusals()]
        assert steps == [Step.SECRET] * GUESSES
        # No second has passed on the log's clock: one line for all of them.
        refused = [line for line in caplog.messages if "refused" in line]
        assert len(refused) == 1
        log_clock.advance(1.0)
        say(live, b"?")
        live.settle()
        assert f"({GUESSES - 1} more like it left out)" in caplog.messages[-1]
        assert len(caplog.messages) <= 5  # and nothing else was logged about them


# Recorded, mirrored and cut handshakes.


def test_a_recorded_handshake_opens_nothing(live: Live) -> None:
    with live.dial() as sock:
        said = shake(sock)
    assert len(said) == HELLO_BYTES + PROOF_BYTES
    for _ in range(200):
        assert say(live, said) == REFUSED
    live.settle()
    assert live.admitted() == 1
    assert len(live.refusals()) == 200


def test_a_recorded_session_opens_nothing(live: Live) -> None:
    """With the frames that followed, in one piece: none of them is obeyed."""
    ping = encode_frame(encode(Hello(SessionId(1), 0, 0))) + encode_frame(encode(Ping()))
    with live.dial() as sock:
        said = shake(sock)
        sock.sendall(ping)
        assert sock.recv(4096)
    before = live.server.status().calls
    for _ in range(50):
        assert say(live, said + ping) in {REFUSED, b""}  # a reset may overtake the verdict
    live.settle()
    assert live.admitted() == 1
    assert live.server.status().calls == before


def test_the_servers_own_words_open_nothing(live: Live) -> None:
    for _ in range(50):
        with live.dial() as sock, live.dial() as other:
            sock.sendall(greeting())
            answer = sock.recv(HELLO_BYTES)
            # Its greeting as ours on a second connection, and its greeting as our proof.
            other.sendall(answer)
            sock.sendall(answer[:PROOF_BYTES])
            assert hear(sock) == REFUSED
            proof = other.recv(HELLO_BYTES)
            other.sendall(proof[:PROOF_BYTES])
            assert hear(other) == REFUSED
    live.settle()
    assert live.admitted() == 0


def test_a_handshake_cut_anywhere_opens_nothing(live: Live) -> None:
    for cut in range(HELLO_BYTES + PROOF_BYTES):
        machine = ClientHandshake(KEY, os.urandom(NONCE_BYTES))
        hello = machine.greeting()
        with live.dial() as sock:
            sock.sendall(hello[:cut])
            if cut >= HELLO_BYTES:
                proof = machine.receive(sock.recv(HELLO_BYTES))
                sock.sendall(proof[: cut - HELLO_BYTES])
            sock.shutdown(socket.SHUT_WR)
            assert hear(sock) == b""
    live.settle()
    assert live.admitted() == 0
    assert len(live.refusals()) == HELLO_BYTES + PROOF_BYTES
    live.check_served()


def test_another_version_is_told_ours_and_refused(live: Live) -> None:
    for version in (0, 2, 255):
        hello = bytearray(greeting())
        hello[4] = version
        answer = say(live, bytes(hello))
        assert answer[:6] == b"HFST\1\1"
        assert len(answer) == HELLO_BYTES
    live.settle()
    assert {refusal.step for refusal in live.refusals()} == {Step.VERSION}
    assert live.admitted() == 0


# Clients of other protocols (X4, X12).


@pytest.mark.parametrize("name", OTHERS)
def test_a_client_of_another_protocol_learns_nothing(live: Live, name: str) -> None:
    answer = say(live, OTHERS[name])
    # A client that sends our magic word is told our version, and nothing else.
    assert answer == b"" or (answer.startswith(b"HFST\1\1") and len(answer) == HELLO_BYTES)
    live.settle()
    assert len(live.refusals()) == 1
    assert live.admitted() == 0
    live.check_served()


def test_random_bytes_open_nothing(live: Live) -> None:
    rng = random.Random(20)
    for _ in range(500):
        assert say(live, rng.randbytes(rng.randrange(1, 4 * KIB))) == b""
    live.settle()
    assert live.admitted() == 0
    assert len(live.refusals()) == 500


# Authenticated clients that send invalid messages (X10, SS-3).

LIES = {
    "a length of 2^31": struct.pack(">I", 2**31),
    "a length of 2^32 - 1": struct.pack(">I", 2**32 - 1),
    "a length of 2^63": struct.pack(">Q", 2**63),
    "a length just over the cap": struct.pack(">I", FRAME_BYTES_MAX + 1),
    "an empty frame": encode_frame(b""),
    "an unknown message": encode_frame(b"\xff"),
    "a call before the greeting": encode_frame(encode(Ping())),
    "a greeting with more behind it": encode_frame(encode(Hello(SessionId(1), 0, 0)) + b"x"),
    "a text of 2^32 - 1 bytes": encode_frame(encode(Hello(SessionId(1), 0, 0)))
    + encode_frame(b"\x04" + bytes(4) + b"\x00" + b"\xff" * 4),
    "a second greeting": 2 * encode_frame(encode(Hello(SessionId(1), 0, 0))),
}


@pytest.mark.parametrize("name", LIES)
def test_a_client_that_lies_is_dropped_before_anything_is_allocated(live: Live, name: str) -> None:
    with live.client() as store, live.dial() as sock:
        shake(sock)
        store.set("key", b"value")
        tracemalloc.start()
        try:
            sock.sendall(LIES[name])
            hear(sock)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < MIB
        assert store.get("key") == b"value"


# Slow clients, and floods (X11, SS-2).


@pytest.mark.usefixtures("many_descriptors")
def test_slow_clients_delay_no_other_and_are_dropped_in_time(live: Live) -> None:
    with live.client() as store, contextlib.ExitStack() as stack:
        store.set("key", b"value")
        gc.collect()
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        slow = [stack.enter_context(live.dial()) for _ in range(SLOW)]
        for sock in slow:
            sock.sendall(b"H")
        live.settle()
        live.check_served()
        assert len(live.server._unauthenticated) == SLOW
        held, _ = tracemalloc.get_traced_memory()
        assert held < SLOW * 16 * KIB
        assert live.refusals() == []

        live.clock.advance(module.HANDSHAKE_WITHIN_S)
        live.settle()
        assert [hear(sock) for sock in slow] == [b""] * SLOW
        assert [refusal.reason for refusal in live.refusals()] == ["silent for too long"] * SLOW
        assert len(live.server._unauthenticated) == 0
        assert store.get("key") == b"value"
        live.check_served()


def test_a_byte_now_and_then_does_not_stretch_the_limit(live: Live) -> None:
    with live.dial() as sock:
        for byte in greeting()[:4]:
            sock.sendall(bytes((byte,)))
            live.settle()
            live.clock.advance(module.HANDSHAKE_WITHIN_S / 4)
        live.settle()
        assert hear(sock) == b""


def test_an_authenticated_but_silent_client_is_dropped_too(live: Live) -> None:
    with live.dial() as sock:
        shake(sock)
        live.clock.advance(module.HANDSHAKE_WITHIN_S)
        live.settle()
        assert hear(sock) == b""


def test_the_oldest_unauthenticated_connection_is_evicted(live: Live) -> None:
    live.server._unauthenticated.most = 50
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(live.dial()) for _ in range(60)]
        live.settle()
        assert [hear(sock) for sock in socks[:10]] == [b""] * 10
        live.check_served()  # takes the place of one more while it shakes hands
        assert len(live.server._unauthenticated) == 49
    reasons = {refusal.reason for refusal in live.refusals()[:11]}
    assert reasons == {"made room for newer connections"}


def test_a_flood_from_one_address_does_not_keep_other_addresses_out(live: Live) -> None:
    """SS-2."""
    live.server._unauthenticated.most = 50
    with contextlib.ExitStack() as stack:
        away = stack.enter_context(
            socket.create_connection(live.server.address, SOON, source_address=("127.0.0.2", 0))
        )
        live.settle()
        flood = [stack.enter_context(live.dial()) for _ in range(200)]
        live.settle()
        assert [hear(sock) for sock in flood[:151]] == [b""] * 151
        shake(away)
    assert {refusal.peer.partition(":")[0] for refusal in live.refusals()} == {"127.0.0.1"}


CROWDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from holdfast.net.address import Address
from holdfast.net.secret import Secret
from holdfast.store.server import StoreServer
with StoreServer(Address("127.0.0.1", 0), Secret(b"a secret of these tests, 32 bytes")) as server:
    print(server.address.port, flush=True)
    sys.stdin.readline()
    files = [open("/dev/null") for _ in range(500)]
    print(len(files), flush=True)
    sys.stdin.readline()
"""


def test_a_thousand_silent_connections_leave_descriptors_for_others() -> None:
    """SS-2: with the soft limit that most systems have."""
    command = [sys.executable, "-c", CROWDED]
    with (
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True) as process,
        hostile.many_descriptors(),
        contextlib.ExitStack() as stack,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        silent = [stack.enter_context(socket.create_connection(address, SOON)) for _ in range(1100)]
        assert hear(silent[0]) == b""  # all that came before the last hundred have been accepted
        assert hear(silent[900]) == b""
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "500\n"
        process.stdin.close()


def test_bytes_of_unauthenticated_clients_are_not_kept(live: Live) -> None:
    """Not even until the moment at which they would have been dropped."""
    flood = greeting() + bytes(256 * KIB)
    say(live, flood)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(300):
            say(live, flood)
        live.settle()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * MIB
    assert live.admitted() == 0


def test_a_client_that_leaves_as_it_is_let_in_leaves_nothing_behind(live: Live) -> None:
    for _ in range(100):
        with live.dial() as sock:
            machine = ClientHandshake(KEY, os.urandom(NONCE_BYTES))
            sock.sendall(machine.greeting())
            sock.sendall(machine.receive(sock.recv(HELLO_BYTES)))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    live.check_served()
    live.settle()
    assert live.server.status().connections == 0
    assert live.server._peers == {}


# Where servers listen (X1, X2).


def listening() -> set[str]:
    """The IPv4 addresses on which this process listens, as the kernel says."""
    links = {os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {
        socket.inet_ntoa(struct.pack("=I", int(row[1].partition(":")[0], 16)))
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in links
    }


def test_a_server_listens_on_loopback_unless_it_is_told(tmp_path: Path) -> None:
    before = listening()
    with serve_store(environment=Environment(state_dir=tmp_path)):
        assert listening() - before == {"127.0.0.1"}
    with serve_store("tcp://127.0.0.3:0", environment=Environment(state_dir=tmp_path)):
        assert listening() - before == {"127.0.0.3"}


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "example.org"])
def test_an_address_for_others_needs_a_secret_that_was_given(tmp_path: Path, host: str) -> None:
    before = listening()
    with pytest.raises(UsageError, match="can be reached from other hosts"):
        serve_store(f"tcp://{host}:0", environment=Environment(state_dir=tmp_path))
    assert listening() == before
    assert os.listdir(tmp_path) == []


# The secret shows nowhere (X13, X14).

CANARY = "canary-5d1c0f7ea8b94e32"

SERVER = """
import logging, sys, traceback
from holdfast.store.open import serve_store

logging.basicConfig(level=logging.DEBUG)
with serve_store() as server:
    def broken(*args):
        raise ZeroDivisionError("a bug while the server works")
    server._machine.receive = broken
    print(server.endpoint, flush=True)
    sys.stdin.read()
    try:
        broken(server, vars(server))
    except ZeroDivisionError as error:
        detailed = traceback.TracebackException.from_exception(error, capture_locals=True)
        print("".join(detailed.format()), vars(server), file=sys.stderr)
"""

CLIENT = """
import logging, sys, traceback
from holdfast.store.open import open_store

def show(kind, error, trace):
    detailed = traceback.TracebackException(kind, error, trace, capture_locals=True)
    print("".join(detailed.format()), file=sys.stderr)

logging.basicConfig(level=logging.DEBUG)
sys.excepthook = show
open_store(sys.argv[1], timeout=0.5)
"""


def test_the_secret_shows_neither_in_output_nor_in_the_command_line() -> None:
    """Not in logs, and not in tracebacks with all local variables, on either side."""
    environment = {**os.environ, "HOLDFAST_SECRET": CANARY}
    seen: list[bytes] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    server = start(SERVER)
    assert server.stdout is not None
    endpoint = server.stdout.readline().strip().decode()
    client = start(CLIENT, endpoint)
    seen += [Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in (server, client)]
    seen += client.communicate(timeout=SOON)
    seen += server.communicate(timeout=SOON)

    output = b"\n".join(seen)
    assert b"no store at tcp://127.0.0.1" in output  # both tracebacks are there
    assert b"a bug while the server works" in output
    assert b"<Key>" in output
    key = Secret(CANARY.encode()).key(KEY_CONTEXT)
    for hidden in (CANARY.encode(), CANARY.encode().hex().encode(), key.hex().encode()):
        assert hidden not in output
    assert bytes.__repr__(key).encode() not in output


# The list.


def test_the_list_of_attempts_names_tests_that_exist() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "security.md").read_text(encoding="utf-8")
    named = 0
    for part in text.split("](../tests/")[1:]:
        path, _, rest = part.partition(")")
        source = (root / "tests" / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(test_\w+)`", rest):
            assert f"\ndef {name}(" in source, f"{path} has no {name}"
            named += 1
    assert named > 30
