"""Whether a connection to torch's store comes from the job, told by the host that it comes from.

torch's clients cannot prove anything. So the agent that serves their store (`Inquiry`) asks the
agent of the host where a connection comes from (`Witness`) whose socket that is. They talk through
the round's store, which only holders of the job's secret can write to:

    from/R   the addresses from which node R reaches the master, with spaces between them
    ask/R    the connections that node R is asked about, all that wait for an answer; in each line
             a number, the client's address and the server's
    told/R   what node R says of each connection in the `ask/R` that it read last; in each line the
             number, and behind a space why it is not the job's, or nothing if it is

Keys are overwritten, and a watch may skip values between the first and the last; that is why each
value is whole.

Guarantees
    VO-1  A connection is vouched for only by an agent of the round which reaches the master from
          the address that the connection comes from, and only if the socket belongs to the user of
          that agent.
    VO-2  Each question is answered when all agents that it was put to have answered, or at once if
          it can be put to none.
    VO-3  At most QUESTIONS_MAX questions wait, and none for longer than the connection.
"""

from __future__ import annotations

import logging
import socket
import threading
from itertools import count

from holdfast.agent.task_thread import TaskThread
from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import Fenced, HoldfastError, PeerViolation, Unavailable, UsageError
from holdfast.net.address import Address, is_loopback, parse_address
from holdfast.net.owner import Ends, judge_owner
from holdfast.net.towards import addresses_towards
from holdfast.records import dataclass
from holdfast.rendezvous.handler import Round
from holdfast.store.c10d.server import VOUCH_WITHIN_S, Answer
from holdfast.store.store import Watch
from holdfast.threads import start_thread

__all__ = ["QUESTIONS_MAX", "Inquiry", "Witness"]

QUESTIONS_MAX = 1024
NODES_PER_WRITE = 100
"""How many nodes are asked by one write: etcd takes 128 keys unless it is told otherwise."""
STORE_WITHIN_S = 10.0
END_WITHIN_S = 1.0
"""How long an end waits for a thread that may be waiting for the store."""

_log = logging.getLogger("holdfast.agent")


@dataclass(slots=True, eq=False)
class _Question:
    """A connection that waits; `nodes` are those that may still vouch for it."""

    ends: Ends
    answer: Answer
    asked_at: float
    nodes: set[int]


class Inquiry:
    """Asks the agents of a round about connections: what a torch store server calls.

    It does nothing before the first question. `close()` it after the server.
    """

    def __init__(self, here: Round, clock: Clock = SYSTEM_CLOCK) -> None:
        self._here = here
        self._clock = clock
        self._asking = TaskThread("holdfast-inquiry")
        self._watch: Watch | None = None
        self._reader: threading.Thread | None = None
        self._numbers = count(1)
        self._places: dict[str, set[int]] = {}  # the nodes at each address; only `_ask` uses it
        self._lock = threading.Lock()  # guards what follows
        self._fresh: list[_Question] = []
        self._open: dict[int, _Question] = {}

    def __call__(self, ends: Ends, answer: Answer) -> None:
        """Find out whether a connection is the job's. Does not block; from any thread."""
        with self._lock:
            full = len(self._fresh) + len(self._open) >= QUESTIONS_MAX
            if not full:
                self._fresh.append(_Question(ends, answer, self._clock.monotonic(), set()))
                if len(self._fresh) == 1:
                    self._asking.submit(self._ask)
        if full:
            answer(f"{QUESTIONS_MAX} connections already wait for their hosts to vouch for them")

    def close(self) -> None:
        """Stop asking; what waits hears nothing any more. Idempotent."""
        if not self._asking.close(END_WITHIN_S):
            _log.warning("the store did not take the last question about a connection")
        if self._watch is not None:
            self._watch.close()
        if self._reader is not None:
            self._reader.join(END_WITHIN_S)

    # On the thread that asks.

    def _ask(self) -> None:
        with self._lock:
            fresh, self._fresh = self._fresh, []
        try:
            self._listen()
            self._look_up_places({question.ends.client.host for question in fresh})
            self._put(fresh)
        except HoldfastError as error:
            self._give_up(fresh, f"its host could not be asked: {error}")

    def _listen(self) -> None:
        """Begin to hear what the nodes say."""
        if self._watch is None:
            self._watch = self._here.store.watch("told/", prefix=True, timeout=STORE_WITHIN_S)
            self._reader = threading.Thread(
                target=self._hear_all, args=(self._watch,), name="holdfast-inquiry", daemon=True
            )
            self._reader.start()

    def _look_up_places(self, hosts: set[str]) -> None:
        """Learn where the nodes are, until all of them have said it."""
        known: set[int] = set().union(*self._places.values())
        if hosts <= self._places.keys() or len(known) >= self._here.world_size - 1:
            return
        for entry in self._here.store.list_prefix("from/", timeout=STORE_WITHIN_S):
            for host in entry.value.decode(errors="replace").split():
                self._places.setdefault(host, set()).add(_node_of(entry.key))

    def _put(self, fresh: list[_Question]) -> None:
        """Put questions to the nodes that may know, and forget those that came too late."""
        oldest = self._clock.monotonic() - VOUCH_WITHIN_S
        asked: set[int] = set()
        nowhere: list[_Question] = []
        with self._lock:
            for number in [n for n, one in self._open.items() if one.asked_at < oldest]:
                del self._open[number]
            for question in fresh:
                question.nodes |= self._places.get(question.ends.client.host, set())
                if question.nodes:
                    self._open[next(self._numbers)] = question
                else:
                    nowhere.append(question)
                asked |= question.nodes
            said = {
                f"ask/{node}": _encode_questions(
                    {n: one.ends for n, one in self._open.items() if node in one.nodes}
                )
                for node in asked
            }
        for question in nowhere:
            question.answer(
                f"no agent of this round is at {question.ends.client.host} to vouch for it; if "
                "addresses are translated on the way, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 leaves "
                "the store to rank 0, which admits every connection"
            )
        keys = sorted(said)
        for start in range(0, len(keys), NODES_PER_WRITE):
            some = {key: said[key] for key in keys[start : start + NODES_PER_WRITE]}
            self._here.store.multi_set(some, timeout=STORE_WITHIN_S)

    def _give_up(self, questions: list[_Question], why: str) -> None:
        with self._lock:
            for number in [n for n, one in self._open.items() if one in questions]:
                del self._open[number]
        for question in questions:
            question.answer(why)

    # On the reader's thread.

    def _hear_all(self, watch: Watch) -> None:
        try:
            for change in watch:
                if change.value is not None:
                    self._hear(_node_of(change.key), change.value)
        except UsageError:
            pass  # closed
        except HoldfastError as error:
            _log.warning("answers about connections are no longer received: %s", error)

    def _hear(self, node: int, told: bytes) -> None:
        try:
            verdicts = _decode_verdicts(told)
        except PeerViolation as error:
            _log.warning("node %d: %s", node, error)
            return
        answers = []
        with self._lock:
            for number, why in verdicts.items():
                question = self._open.get(number)
                if question is None or node not in question.nodes:
                    continue
                question.nodes.discard(node)
                if not why or not question.nodes:
                    del self._open[number]
                    answers.append((question.answer, why))
        for answer, why in answers:
            answer(why)


class Witness:
    """Says of connections of this host whether they are the job's. `start()` it, then `close()`."""

    def __init__(self, here: Round) -> None:
        self._here = here
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None

    def start(self, master: Address, deadline: Deadline) -> None:
        """Tell from where this node reaches the master, and answer from now on.

        Nothing is done if it reaches the master by loopback: then they are one host. Fenced if the
        round is over.
        """
        places = addresses_towards(master, deadline)
        if all(map(is_loopback, places)):
            return
        store, rank = self._here.store, self._here.rank
        self._watch = store.watch(f"ask/{rank}", timeout=deadline.remaining())
        self._thread = threading.Thread(
            target=self._answer_all, args=(self._watch,), name="holdfast-witness", daemon=True
        )
        start_thread(self._thread)
        store.set(f"from/{rank}", " ".join(places).encode(), timeout=deadline.remaining())

    def close(self) -> None:
        """Answer no more. Idempotent."""
        if self._watch is not None:
            self._watch.close()
        if self._thread is not None:
            self._thread.join(END_WITHIN_S)

    def _answer_all(self, watch: Watch) -> None:
        try:
            for change in watch:
                if change.value is not None:
                    self._answer(change.value)
        except UsageError:
            pass  # closed
        except HoldfastError as error:
            _log.warning("questions about connections are no longer answered: %s", error)

    def _answer(self, asked: bytes) -> None:
        store, rank = self._here.store, self._here.rank
        try:
            verdicts = {number: _verdict(ends) for number, ends in _decode_questions(asked).items()}
            store.set(f"told/{rank}", _encode_verdicts(verdicts), timeout=STORE_WITHIN_S)
        except Fenced:
            pass  # the round is over
        except HoldfastError as error:  # the next question has in it what waits still
            _log.warning("a question about connections was not answered: %s", error)


def _verdict(ends: Ends) -> str:
    """Return why a connection of this host is not the job's, or nothing if it is."""
    try:
        why = judge_owner(ends)
    except Unavailable as error:
        why = str(error)
    if why is None:
        why = "no process there holds its other end"
    return why and f"on {socket.gethostname()}: {why}"


def _node_of(key: str) -> int:
    """Return the node that a key names; -1, which is none, if it names something else."""
    name = key.rpartition("/")[2]
    return int(name) if name.isdecimal() else -1


def _encode_questions(asked: dict[int, Ends]) -> bytes:
    lines = (f"{number} {ends.client} {ends.server}" for number, ends in asked.items())
    return "\n".join(lines).encode()


def _decode_questions(data: bytes) -> dict[int, Ends]:
    found = {}
    try:
        for line in data.decode().splitlines():
            number, client, server = line.split(" ")
            found[int(number)] = Ends(parse_address(client), parse_address(server))
    except ValueError:  # a UsageError, too
        raise PeerViolation(f"question about connections: {data[:60]!r} is malformed") from None
    return found


def _encode_verdicts(told: dict[int, str]) -> bytes:
    return "\n".join(f"{number} {why}" for number, why in told.items()).encode()


def _decode_verdicts(data: bytes) -> dict[int, str]:
    found = {}
    try:
        for line in data.decode().splitlines():
            number, _, why = line.partition(" ")
            found[int(number)] = why
    except ValueError:
        raise PeerViolation(f"answer about connections: {data[:60]!r} is malformed") from None
    return found
