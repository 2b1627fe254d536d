"""What the agents of one round tell each other, through the store that they share.

    node/R        what node R says of its workers (`NodeInfo`), written when the round begins
    torch_store   whether node 0 serves torch's store protocol in this round: 1 or 0
    terms         what all nodes should have been told alike, in the words of node 0
    ROUND/failed/R   which workers of node R have failed so far (on the board)
    ROUND/done/R     the workers of node R are done (on the board)

The first three are in the round's own store, which ends with the round. Reports outlive it, since
they are about its end: they are on the run's board, below the number of the round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.agent.roles import NodeInfo, decode_node
from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import Fenced, PeerViolation, StoreUnavailable, TimeoutExpired
from holdfast.process.outcome.failure import Failure, dump_json, first_cause, load_json
from holdfast.rendezvous.handler import Round
from holdfast.store.store import Watch

__all__ = ["decode_report", "meet_at_exit", "publish", "say_done", "swap", "watch_reports"]

_log = logging.getLogger("holdfast.agent")

SLICE_S = 1.0
"""How often a wait for other nodes looks whether it still makes sense."""
RETRY_S = 0.2
"""How long a wait rests when the store cannot be reached."""
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
) -> tuple[tuple[NodeInfo, ...], bool] | None:
    """Tell the round of this node; return all of them by rank, and whether torch's store is served.

    None if the round is over before all nodes have spoken. Two operations, whatever the number of
    nodes. A node whose `terms` are not those of node 0 warns, and goes on.
    """
    said = {f"node/{here.rank}": mine.encode()}
    if here.rank == 0:
        said |= {"torch_store": b"1" if torch_store else b"0", "terms": terms.encode()}
    try:
        here.store.multi_set(said, timeout=deadline.remaining())
    except Fenced:
        return None
    keys = [f"node/{rank}" for rank in range(here.world_size)]
    while not over():
        try:
            *nodes, there, alike = here.store.wait(
                [*keys, "torch_store", "terms"], timeout=deadline.sooner(SLICE_S).remaining()
            )
        except TimeoutExpired:
            if deadline.passed():
                raise
            continue
        if (theirs := alike.decode(errors="replace")) != terms:
            told = "this node was told of %r, node 0 of %.80r: give all nodes the same"
            _log.warning(told, terms, theirs)
        return tuple(map(decode_node, nodes)), there == b"1"
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
        raise PeerViolation(f"report of failures: {data[:60]!r} is none") from None
    return tuple(Failure.from_json(one, wall) for one in told), final


def say_done(here: Round, deadline: Deadline) -> None:
    """Tell the other nodes that our workers are done: whatever becomes of us, do not wait."""
    here.board.set(f"{here.number}/done/{here.rank}", b"", timeout=deadline.remaining())


def meet_at_exit(here: Round, stopped: Callable[[], bool], deadline: Deadline) -> None:
    """Wait until every node of the round has said that it is done, or until `stopped()`.

    TimeoutExpired names the nodes that have not. A store that cannot be reached may come back:
    whether it is lost is the rendezvous' to say, and then the wait is stopped.
    """
    keys = [f"{here.number}/done/{rank}" for rank in range(here.world_size)]
    while not stopped():
        try:
            here.board.wait(keys, timeout=deadline.sooner(SLICE_S).remaining())
        except TimeoutExpired as error:
            if deadline.passed():
                late = ", ".join(key.rpartition("/")[2] for key in error.waiting_for)
                raise TimeoutExpired(
                    f"not all workers were done in time: waited for node {late}",
                    waiting_for=error.waiting_for,
                ) from None
            continue
        except StoreUnavailable:
            if deadline.passed():
                raise
            SYSTEM_CLOCK.sleep(RETRY_S)
            continue
        return
