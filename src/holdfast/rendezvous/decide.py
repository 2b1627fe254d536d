"""Decide when the nodes of a run agree on who is in, and in which order.

Rule 1: every decision about a round is in this file.
Rule 2: this file reads no clock, socket or environment; `now` is given.

One node, the leader, calls `decide` over what it sees whenever something changes, and publishes
the record that comes out. The others take the record as it is.

    FORMING n ──(enough nodes, and the last call is over)──▶ COMPLETE n
    COMPLETE n ──(a member is gone, or asks for a new round)──▶ FORMING n+1
    any ──(somebody closes the run)──▶ CLOSED

Guarantees
    RV-1  A round that is complete never changes its members.
    RV-2  Ranks of a complete round are exactly 0..n-1, and min ≤ n ≤ max.
    RV-3  Round numbers increase, one at a time.
    RV-4  Leaving never closes: only `close` does, and nothing opens a closed run again.
    RV-5  However many members are lost or ask at once, one new round comes of it.
    RV-6  Every decision has a reason, and says when to look again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from holdfast.errors import UsageError
from holdfast.ids import NodeId
from holdfast.rendezvous.model import Announcement, Phase, Progress, Record, Status
from holdfast.rendezvous.ranks import RankPolicy, choose, sticky_ranks

__all__ = ["Decision", "Rules", "Situation", "decide"]

NAMES_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The numbers that a run goes by. Durations are seconds."""

    min_nodes: int
    max_nodes: int
    join_s: float = 600.0
    """How long a node waits for a round to be formed."""
    last_call_s: float = 30.0
    """How long a round that has its minimum waits for more, up to its maximum."""
    keep_alive_s: float = 5.0
    """How often a node renews its lease."""
    lease_s: float = 15.0
    """How long a node that is silent counts as alive: the keep-alive budget."""
    linger_s: float = 0.5
    """How long a node whose connection is closed counts as alive, where the store can tell."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise UsageError(
                f"nodes {self.min_nodes}:{self.max_nodes}: must be MIN:MAX with 1 <= MIN <= MAX"
            )
        if not 0 < self.keep_alive_s < self.lease_s:
            raise UsageError(
                f"keep-alive every {self.keep_alive_s:g} s for a lease of {self.lease_s:g} s: "
                "the interval must be more than 0 and less than the lease"
            )
        for name in ("join_s", "last_call_s", "linger_s"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} {getattr(self, name)}: must not be negative")


@dataclass(frozen=True, slots=True)
class Situation:
    """What the leader sees: the record, the nodes in order of arrival, and since when.

    `forming_since` is when the leader first saw this round being formed, `enough_since` when it
    first had its minimum; both on the leader's own clock.
    """

    record: Record
    nodes: Mapping[NodeId, Announcement]
    forming_since: float
    enough_since: float | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to publish (None: nothing), what to tell, why, and when to look again (RV-6)."""

    record: Record | None
    progress: Progress
    wake_at: float | None

    @property
    def reason(self) -> str:
        """The decision's reason, one sentence for a person."""
        return self.progress.reason


def decide(seen: Situation, rules: Rules, now: float, rank: RankPolicy = sticky_ranks) -> Decision:
    """Decide what becomes of the current round."""
    match seen.record.status:
        case Status.FORMING:
            return _form(seen, rules, now, rank)
        case Status.COMPLETE:
            return _judge(seen, rules)
        case Status.CLOSED:
            return _same(seen, 0, 0, (), f"the run is closed: {seen.record.reason}")
        case _:
            assert_never(seen.record.status)


def _form(seen: Situation, rules: Rules, now: float, rank: RankPolicy) -> Decision:
    previous = [member.node for member in seen.record.members]
    ready = _without_twins([n for n in seen.nodes.values() if n.phase is Phase.WAITING])
    # Alive and still in the last round: they will come, so going without them would only mean
    # one more round a moment later (RV-5).
    coming = [node for node in seen.nodes.values() if node.phase is Phase.WORKING]
    missing = tuple(node.host for node in coming)
    have = len(ready)
    if have >= rules.max_nodes:
        return _complete(seen, rules, ready, previous, rank, "all places are taken")
    if have < rules.min_nodes:
        short = rules.min_nodes - have
        reason = f"have {have} of {rules.min_nodes}: waiting for {short} more{_names(missing)}"
        return _same(seen, have, 0, missing, reason)
    patience = seen.forming_since + rules.join_s
    if coming and now < patience:
        reason = f"have {have}, enough: waiting for {len(coming)} to come back{_names(missing)}"
        return _same(seen, have, 0, missing, reason, wake_at=patience)
    last_call = (now if seen.enough_since is None else seen.enough_since) + rules.last_call_s
    if now < last_call:
        reason = f"have {have}, enough: last call for up to {rules.max_nodes}"
        return _same(seen, have, 0, missing, reason, wake_at=last_call, left_s=last_call - now)
    return _complete(seen, rules, ready, previous, rank, f"the last call is over, have {have}")


def _judge(seen: Situation, rules: Rules) -> Decision:
    record = seen.record
    gone, asking = [], []
    for member in record.members:
        node = seen.nodes.get(member.node)
        if node is None:
            gone.append(f"{member.host} is gone")
        elif node.phase is Phase.WAITING and node.round >= record.number:
            asking.append(f"{node.host}: {node.why}" if node.why else f"{node.host} asks for it")
    members = {member.node for member in record.members}
    outside = [node for node in seen.nodes.values() if node.node not in members]
    waiting = min(len(outside), rules.max_nodes - len(members))
    if gone or asking:
        reason = f"round {record.number} is over: {'; '.join([*gone, *asking][:NAMES_MAX])}"
        forming = Record(record.number + 1, Status.FORMING, record.members, reason)
        ready = sum(1 for node in seen.nodes.values() if node.phase is Phase.WAITING)
        return Decision(forming, Progress(record.number + 1, ready, 0, (), None, reason), None)
    reason = f"{record.reason}; {len(outside)} waiting" if outside else record.reason
    return _same(seen, len(members), waiting, (), reason)


def _complete(
    seen: Situation,
    rules: Rules,
    ready: Sequence[Announcement],
    previous: Sequence[NodeId],
    rank: RankPolicy,
    why: str,
) -> Decision:
    chosen = rank(choose(ready, previous, rules.max_nodes), previous)
    number = seen.record.number
    members = tuple(node.member() for node in chosen)
    reason = f"round {number} is complete with {len(members)}: {why}"
    record = Record(number, Status.COMPLETE, members, reason)
    return Decision(record, Progress(number, len(members), 0, (), None, reason), None)


def _same(
    seen: Situation,
    have: int,
    waiting: int,
    missing: tuple[str, ...],
    reason: str,
    *,
    wake_at: float | None = None,
    left_s: float | None = None,
) -> Decision:
    progress = Progress(seen.record.number, have, waiting, missing[:NAMES_MAX], left_s, reason)
    return Decision(None, progress, wake_at)


def _without_twins(ready: list[Announcement]) -> list[Announcement]:
    """Of nodes that insist on the same rank, keep the one that came first."""
    taken: set[int] = set()
    kept = []
    for node in ready:
        if node.slot is None or node.slot not in taken:
            kept.append(node)
        if node.slot is not None:
            taken.add(node.slot)
    return kept


def _names(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = "" if len(names) <= NAMES_MAX else f" and {len(names) - NAMES_MAX} more"
    return f" ({', '.join(names[:NAMES_MAX])}{more})"
