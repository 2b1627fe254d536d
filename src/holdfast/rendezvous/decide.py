"""Decide when the nodes of a run agree on which of them are in, and in which order.

Rule 1: every decision about a round is in this file.
Rule 2: this file reads no clock, socket or environment; `now` is given.

One node, the leader, calls `decide` over what it sees whenever something changes, and publishes
the record that comes out. The others take the record as it is.

    FORMING n ──(enough nodes, and the last call is over, or not needed)──▶ COMPLETE n
    COMPLETE n ──(a member is gone, or asks for a new round; all have finished and left)
                 ──▶ FORMING n+1
    any ──(a node closes the run)──▶ CLOSED

Guarantees
    RV-1  A round that is complete never changes its members.
    RV-2  Ranks of a complete round are exactly 0..n-1, and min ≤ n ≤ max.
    RV-3  Round numbers increase, one at a time.
    RV-4  Leaving never closes: only `close` does, and nothing opens a closed run again.
    RV-5  However many members are lost or ask at once, one new round comes of it.
    RV-6  Every decision has a reason, and says when to look again.
    RV-7  A complete round says how many failures had been counted before it: its members agree.
    RV-8  A member that has finished may leave, and the round goes on; if it dies before, it is
          over. A node that has left is not waited for.
    RV-9  Once a member has finished, the round lets no node in: it is ending.
    RV-10 The last call is for newcomers, at the start and when the run grows. Once every member of
          the last round that lives has asked again, and the nodes are no more than that round had,
          the next one is complete without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from holdfast.errors import UsageError
from holdfast.ids import NodeId
from holdfast.records import dataclass
from holdfast.rendezvous.model import (
    Announcement,
    Member,
    Phase,
    Progress,
    RoundRecord,
    Status,
    clipped,
)
from holdfast.rendezvous.ranks import RankPolicy, choose, sticky_ranks
from holdfast.store.ops import TTL_MAX_S

__all__ = ["Decision", "Rules", "Situation", "decide"]

NAMES_MAX = 8
LEFT_MAX_S = 1e8  # as good as for ever, and a number that others can read


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
    stop_s: float = 0.0
    """How long a node may take to stop its work when its round is over."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise UsageError(
                f"nodes {self.min_nodes}:{self.max_nodes}: must be MIN:MAX with 1 <= MIN <= MAX"
            )
        if not 0 < self.keep_alive_s < self.lease_s <= TTL_MAX_S:
            raise UsageError(
                f"keep-alive every {self.keep_alive_s:g} s for a lease of {self.lease_s:g} s: the "
                f"interval must be more than 0 and less than the lease, that at most {TTL_MAX_S:g}"
            )
        for name in ("join_s", "last_call_s", "linger_s", "stop_s"):
            if not getattr(self, name) >= 0:  # not a number is neither more nor less
                raise UsageError(f"{name} {getattr(self, name)}: must not be negative")

    @property
    def nodes(self) -> str:
        """How many nodes a round has, as nodes compare it: MIN:MAX."""
        return f"{self.min_nodes}:{self.max_nodes}"

    @property
    def grace_s(self) -> float:
        """How long a new round that has its minimum waits for living members of the last one.

        As long as a member may take to hear of the end, a lease, and then to stop its work: it
        would run beside the new round else. It ends well before the nodes that wait give up: a
        member that lives and never asks would else make all of them time out at once, though they
        are enough without it.
        """
        return min(self.join_s / 2, self.lease_s + max(self.last_call_s, self.stop_s))


@dataclass(frozen=True, slots=True)
class Situation:
    """What the leader sees: the record, its members, the nodes in order of arrival, since when.

    `members` are those of the record's roll: of the complete round, or of the one before it.
    `forming_since` is when the leader first saw this round being formed, `enough_since` when it
    first had its minimum; both on the leader's own clock. `failures` had been counted when the
    round began to be formed: there are no more until it is complete (ND-4).
    """

    record: RoundRecord
    members: Sequence[Member]
    nodes: Mapping[NodeId, Announcement]
    forming_since: float
    enough_since: float | None
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """What to publish (None: nothing), what to tell, why, and when to look again (RV-6).

    `members` are those of a round that is to be complete, in the order of their ranks. The record
    names no roll yet: the leader names it when it writes the members down (RM-3).
    """

    record: RoundRecord | None
    progress: Progress
    wake_at: float | None
    members: tuple[Member, ...] = ()

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
    previous = [member.node for member in seen.members]
    # Alive and still in the last round: they will come, so going without them would only mean
    # one more round a moment later (RV-5). So are those whose wish is older than that round: it
    # was granted, and if they have died since, counting on them would be that round as well.
    heard = dict.fromkeys(previous, seen.record.number - 1)
    asking: list[Announcement] = []
    coming: list[Announcement] = []
    for node in seen.nodes.values():
        if node.phase is Phase.LEFT:
            continue
        asks = node.phase is Phase.WAITING and node.round >= heard.get(node.node, 0)
        (asking if asks else coming).append(node)
    ready, odd = _placeable(choose(asking, previous, len(asking)), rules.max_nodes)
    late = tuple(node.host for node in coming)
    gone = tuple(each.host for each in seen.members if each.node not in seen.nodes)
    missing = late + gone
    have = len(ready)
    wait_until = seen.forming_since + rules.grace_s
    # A newcomer that is quick does not take the place of a member that ends its work.
    awaited = not {node.node for node in coming}.isdisjoint(previous)
    kept = now < wait_until and awaited
    if have >= rules.max_nodes and not kept:
        return _complete(seen, rules, ready, previous, rank, "all places are taken")
    if have < rules.min_nodes:
        short = rules.min_nodes - have
        reason = f"have {have} of {rules.min_nodes}: waiting for {short} more{_names(missing)}"
        left_s = seen.forming_since + rules.join_s - now
        return _same(seen, have, 0, missing, reason + odd, left_s=left_s)
    if coming and now < wait_until:
        reason = f"have {have}, enough: waiting for {len(coming)} to come back{_names(late)}"
        left_s = wait_until - now
        return _same(seen, have, 0, missing, reason + odd, wake_at=wait_until, left_s=left_s)
    returned = any(node.node in heard for node in ready)
    if returned and have <= len(previous) and not awaited:
        why = f"all living members of round {seen.record.number - 1} are back"
        return _complete(seen, rules, ready, previous, rank, why)
    last_call = (now if seen.enough_since is None else seen.enough_since) + rules.last_call_s
    if now < last_call:
        reason = f"have {have}, enough: last call for up to {rules.max_nodes}"
        left_s = last_call - now
        return _same(seen, have, 0, missing, reason + odd, wake_at=last_call, left_s=left_s)
    return _complete(seen, rules, ready, previous, rank, f"the last call is over, have {have}")


def _judge(seen: Situation, rules: Rules) -> Decision:
    record = seen.record
    gone, asking, done = [], [], []
    for member in seen.members:
        node = seen.nodes.get(member.node)
        if node is None:
            gone.append(f"{member.host} is gone")
        elif node.phase is Phase.WAITING and node.round >= record.number:
            asking.append(f"{node.host}: {node.why}" if node.why else f"{node.host} asks for it")
        elif node.phase in (Phase.FINISHED, Phase.LEFT):
            done.append(node.phase)
    if done.count(Phase.LEFT) == len(seen.members):
        gone.append("all have finished and left")
    if gone or asking:
        why = "; ".join([*gone, *asking][:NAMES_MAX])
        reason = clipped(f"round {record.number} is over: {why}")
        forming = RoundRecord(
            record.number + 1, Status.FORMING, reason, size=record.size, roll=record.roll
        )
        ready = sum(1 for node in seen.nodes.values() if node.phase is Phase.WAITING)
        return Decision(forming, Progress(record.number + 1, ready, 0, (), None, reason), None)
    members = {member.node for member in seen.members}
    inside = [node for node in seen.nodes.values() if node.node in members]
    # A node of an earlier round that has not asked may be dead: it counts when it asks (RV-5).
    others = [node for node in seen.nodes.values() if node.node not in members]
    outside = [node for node in others if node.phase is Phase.WAITING]
    fit, odd = _placeable([*inside, *outside], rules.max_nodes)
    waiting = 0 if done else max(0, min(len(fit), rules.max_nodes) - len(members))
    reason = f"{record.reason}; {len(done)} finished" if done else record.reason
    reason = f"{reason}; {len(outside)} waiting" if outside else reason
    return _same(seen, len(members), waiting, (), reason + odd)


def _complete(
    seen: Situation,
    rules: Rules,
    ready: Sequence[Announcement],
    previous: Sequence[NodeId],
    rank: RankPolicy,
    why: str,
) -> Decision:
    chosen = choose(ready, previous, rules.max_nodes)
    ranked = rank(chosen, previous)
    if sorted(node.node for node in ranked) != sorted(node.node for node in chosen):
        raise UsageError("the rank policy must return the nodes that it is given, each once (RV-2)")
    number = seen.record.number
    members = tuple(node.member() for node in ranked)
    reason = f"round {number} is complete with {len(members)}: {why}"
    record = RoundRecord(
        number,
        Status.COMPLETE,
        reason,
        size=len(members),
        address=members[0].address,
        port=members[0].port,
        failures=seen.failures,
    )
    return Decision(record, Progress(number, len(members), 0, (), None, reason), None, members)


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
    number, names = seen.record.number, missing[:NAMES_MAX]
    if left_s is not None:
        left_s = min(max(0.0, left_s), LEFT_MAX_S)
    return Decision(None, Progress(number, have, waiting, names, left_s, clipped(reason)), wake_at)


def _placeable(nodes: Sequence[Announcement], limit: int) -> tuple[list[Announcement], str]:
    """Return the nodes that can have the rank they require, and what to say of the others."""
    holders: dict[int, str] = {}
    fit, odd = [], []
    for node in nodes:
        slot = node.slot
        if slot is None:
            fit.append(node)
        elif slot >= limit:
            odd.append(f"; {node.host} cannot have rank {slot}: there are {limit}")
        elif slot in holders:
            odd.append(f"; {node.host} cannot have rank {slot}: {holders[slot]} has it")
        else:
            holders[slot] = node.host
            fit.append(node)
    return fit, "".join(odd[:NAMES_MAX])


def _names(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = "" if len(names) <= NAMES_MAX else f" and {len(names) - NAMES_MAX} more"
    return f" ({', '.join(names[:NAMES_MAX])}{more})"
