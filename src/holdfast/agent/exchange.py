"""What the agents of one round tell each other, through the store that they share.

    node/R        what node R says of its workers (`NodeInfo`), written when the round begins
    share/R       the ranks of node R's workers (`NodeShare`), as node 0 divides them
    torch_store   whether node 0 serves torch's store protocol in this round: 1 or 0
    terms         what all nodes should have been told alike, in the words of node 0
    ROUND/failed/R   which workers of node R have failed so far (on the board)
    ROUND/done/R     the workers of node R are done (on the board)
    ROUND/done_count how many nodes have said so (on the board)
    ROUND/all_done   that all have (on the board)
    failure/N        what the Nth failure of the job was, where rules compare them (on the board)

The first four are in the round's own store, which ends with the round. Reports outlive it, since
they are about its end: they are on the run's board, below the number of the round.

Guarantees
    EX-1  To learn its ranks costs a node a constant number of operations and bytes, whatever the
          number of nodes; node 0 alone reads what each of them says, and by parts of PART keys.
    EX-2  So does the exit barrier, at every node.
    EX-3  The exit barrier ends only when every node has said that it is done, whichever answer of
          the store is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.agent.roles import NodeInfo, NodeShare, decode_node, decode_share, divide
from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import Fenced, PeerViolation, StoreUnavailable, TimeoutExpired
from holdfast.process.outcome.failure import Failure, dump_json, first_cause, load_json
from holdfast.rendezvous.handler import Round
from holdfast.store.store import Watch

__all__ = [
    "decode_report",
    "keep_description",
    "meet_at_exit",
    "publish",
    "read_descriptions",
    "say_done",
    "swap",
    "watch_reports",
]

_log = logging.getLogger("holdfast.agent")

SLICE_S = 1.0
"""How often a wait for other nodes looks whether it still makes sense."""
RETRY_S = 0.2
"""How long a wait rests when the store cannot be reached."""
PART = 100
"""How many keys are read or written at once: etcd takes 128."""
NAMED_MAX = 100
"""Among how many nodes the exit barrier looks for those that are late, to name them."""
REPORT_FAILURES_MAX = 64
REPORT_BYTES_MAX = 1 << 20
"""About how large a report may be: a request to etcd holds 1.5 MiB."""


def swap(
    here: Round,
    mine: NodeInfo,
    torch_store: bool,
    over: Callable[[], bool],
    deadline: Deadline,
    terms: str = "",
) -> tuple[NodeShare, bool] | None:
    """Tell the round of this node; return its ranks, and whether torch's store is served (EX-1).

    None if the round is over before all nodes have spoken. A node whose `terms` are not those of
    node 0 warns, and goes on.
    """
    try:
        if here.rank == 0:
            share = _divide_ranks(here, mine, torch_store, over, deadline, terms)
            return None if share is None else (share, torch_store)
        here.store.set(f"node/{here.rank}", mine.encode(), timeout=deadline.remaining())
    except Fenced:
        return None
    told = _wait(here, [f"share/{here.rank}", "torch_store", "terms"], over, deadline)
    if told is None:
        return None
    share_told, there, alike = told
    if (theirs := alike.decode(errors="replace")) != terms:
        warning = "nodes disagree: this one was started with %r, node 0 with %.80r"
        _log.warning(f"{warning}; start all nodes with the same", terms, theirs)
    return decode_share(share_told, mine, here.rank, here.world_size), there == b"1"


def _divide_ranks(
    here: Round,
    mine: NodeInfo,
    torch_store: bool,
    over: Callable[[], bool],
    deadline: Deadline,
    terms: str,
) -> NodeShare | None:
    """Read what all nodes say, and tell each of them its share; return that of node 0."""
    nodes = [mine]
    for part in _parts(range(1, here.world_size)):
        said = _wait(here, [f"node/{rank}" for rank in part], over, deadline)
        if said is None:
            return None
        nodes += map(decode_node, said)
    shares = divide(nodes)
    first = {"torch_store": b"1" if torch_store else b"0", "terms": terms.encode()}
    here.store.multi_set(first, timeout=deadline.remaining())
    for part in _parts(range(1, here.world_size)):
        told = {f"share/{rank}": shares[rank].encode() for rank in part}
        here.store.multi_set(told, timeout=deadline.remaining())
    return shares[0]


def _parts(ranks: range) -> list[range]:
    return [ranks[start : start + PART] for start in range(0, len(ranks), PART)]


def _wait(
    here: Round, keys: list[str], over: Callable[[], bool], deadline: Deadline
) -> list[bytes] | None:
    """Wait for keys of the round; None if it is over before they are there."""
    while not over():
        try:
            return here.store.wait(keys, timeout=deadline.sooner(SLICE_S).remaining())
        except TimeoutExpired:
            if deadline.passed():
                raise
    return None


def publish(
    here: Round, failures: tuple[Failure, ...], final: bool, wall: float, deadline: Deadline
) -> None:
    """Tell the other nodes which of our workers have failed."""
    first = first_cause(failures)[:REPORT_FAILURES_MAX]
    told = _what_fits([failure.to_json(wall) for failure in first])
    value = dump_json({"final": final, "failures": told})
    here.board.set(f"{here.number}/failed/{here.rank}", value, timeout=deadline.remaining())


def _what_fits(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what a value of a store cannot hold: contents of error files, then the last."""
    fits: list[dict[str, Any]] = []
    room = REPORT_BYTES_MAX
    for whole in told:
        for one in (whole, {**whole, "error_data": None}):
            size = len(dump_json(one))
            if size <= room:
                break
        else:
            break
        fits.append(one)
        room -= size
    return fits


def keep_description(here: Round, number: int, text: str, deadline: Deadline) -> None:
    """Keep what the failure of this number was, for all later rounds."""
    here.board.set(f"failure/{number}", text.encode(), timeout=deadline.remaining())


def read_descriptions(
    here: Round, number: int, compared: int, deadline: Deadline
) -> tuple[str, ...]:
    """Return what the failures before this one were, the newest first; "" for one not kept."""
    earlier = range(number - 1, max(0, number - 1 - compared), -1)
    if not earlier:
        return ()
    kept = here.board.multi_get([f"failure/{one}" for one in earlier], timeout=deadline.remaining())
    return tuple((one or b"").decode(errors="replace") for one in kept)


def watch_reports(here: Round, deadline: Deadline) -> Watch:
    """Watch what the nodes of a round report; each change's key ends with the node's number."""
    return here.board.watch(f"{here.number}/failed/", prefix=True, timeout=deadline.remaining())


def decode_report(data: bytes, wall: float) -> tuple[tuple[Failure, ...], bool]:
    """Read a report that has just come; the times of its failures are on our clock then.

    A report says how long ago something happened: clocks of hosts differ, durations do not.
    """
    try:
        plain = load_json(data)
        told, final = plain["failures"], plain["final"]
        if not isinstance(told, list) or not isinstance(final, bool):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PeerViolation(f"report of failures: {data[:60]!r} is malformed") from None
    return tuple(Failure.from_json(one, wall) for one in told), final


def say_done(here: Round, deadline: Deadline) -> None:
    """Tell the other nodes that our workers are done: whatever becomes of us, do not wait.

    Once for each round: it is counted. The last node to do so tells all others.
    """
    board, round_ = here.board, here.number
    board.set(f"{round_}/done/{here.rank}", b"", timeout=deadline.remaining())
    if board.add(f"{round_}/done_count", timeout=deadline.remaining()) == here.world_size:
        board.set(f"{round_}/all_done", b"", timeout=deadline.remaining())


def meet_at_exit(here: Round, stopped: Callable[[], bool], deadline: Deadline) -> None:
    """Wait until every node of the round has said that it is done, or until `stopped()`.

    TimeoutExpired names the nodes that have not. A store that cannot be reached may come back:
    whether it is lost is the rendezvous' to say, and then the wait is stopped.
    """
    while not stopped():
        try:
            if _all_done(here, deadline):
                return
            if deadline.passed():
                raise _too_late(here)
        except (StoreUnavailable, TimeoutExpired):
            if deadline.passed():
                raise
            SYSTEM_CLOCK.sleep(RETRY_S)


def _all_done(here: Round, deadline: Deadline) -> bool:
    """Wait for a moment until all nodes are done, and say whether they are."""
    board, round_ = here.board, here.number
    try:
        board.wait([f"{round_}/all_done"], timeout=deadline.sooner(SLICE_S).remaining())
    except TimeoutExpired:
        # The last node may not have heard that it was the last (EX-3).
        count = board.get(f"{round_}/done_count", timeout=SLICE_S)
        return count == b"%d" % here.world_size
    return True


def _too_late(here: Round) -> TimeoutExpired:
    """Say which nodes have not finished: those among the first that a single operation reads."""
    keys = [f"{here.number}/done/{rank}" for rank in range(min(here.world_size, NAMED_MAX))]
    done = here.board.multi_get(keys, timeout=SLICE_S)
    late = [str(rank) for rank, value in enumerate(done) if value is None]
    names = f"node {', '.join(late)}" if late else f"a node after {len(keys) - 1}"
    waiting_for = tuple(f"{here.number}/done/{rank}" for rank in late)
    return TimeoutExpired(
        f"not all nodes finished in time: waited for {names}", waiting_for=waiting_for
    )
