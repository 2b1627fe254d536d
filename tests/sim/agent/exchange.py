"""What simulated agents tell each other in a round, as `agent/exchange.py` does it over a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.agent.exchange import RETRY_S
from holdfast.agent.machine import State
from holdfast.agent.roles import NodeInfo, NodeShare, decode_node, decode_share, divide
from holdfast.errors import Fenced, StoreUnavailable
from holdfast.rendezvous.model import RoundRecord
from holdfast.store.ops import Add, Entry, Get, Guarded, MultiSet, Set, Wait
from tests.sim.agent.judge import NOT_IN_TIME

if TYPE_CHECKING:
    from tests.sim.agent.nodes import AgentUser

__all__ = ["meet", "swap"]

SWAP_WITHIN_S = 60.0
SLICE_S = 1.0


def swap(user: AgentUser, record: RoundRecord, rank: int) -> None:
    """Tell the others of the round how many workers are here, and hear where ours come in."""
    keys = user.judge.keys
    prefix = keys.of_round(record.number)
    until = user.now() + SWAP_WITHIN_S
    mine = NodeInfo("", user.own_workers)
    others = range(1, record.size)
    infos = tuple(f"{prefix}node/{one}" for one in others)
    names = infos if rank == 0 else (f"{prefix}share/{rank}",)

    def write(items: dict[str, bytes], then: Callable[[Any], None]) -> None:
        op = MultiSet(tuple((prefix + key, value) for key, value in items.items()))
        user._do(Guarded(keys.round, record.encode(), op), SWAP_WITHIN_S, then)

    def wait(result: object) -> None:
        if isinstance(result, Fenced):
            user._ask_for(user._over_why or "the round ended before it began")
        elif isinstance(result, int):
            user._do(Wait(names), SLICE_S, heard)
        else:
            user._broke("the others of the round cannot be told")

    def heard(result: object) -> None:
        if user._over_why is not None or user._lost or user._is_closed:
            if user._joining:
                user._ask_for(user._over_why or "the round ended before it began")
        elif isinstance(result, tuple) and rank == 0:
            divided(divide([mine, *(decode_node(entry.value) for entry in result)]))
        elif isinstance(result, tuple):
            user._joined(record, decode_share(result[0].value, mine, rank, record.size))
        elif user.now() >= until:
            user._broke("the others of the round say nothing")
        else:
            user._do(Wait(names), SLICE_S, heard)

    def divided(shares: tuple[NodeShare, ...]) -> None:
        def told(result: object) -> None:
            if isinstance(result, int):
                user._joined(record, shares[0])
            else:
                wait(result)

        write({f"share/{one}": shares[one].encode() for one in others} or {"_": b""}, told)

    if rank == 0:
        wait(0)
    else:
        write({f"node/{rank}": mine.encode()}, wait)


def meet(user: AgentUser, timeout_s: float) -> None:
    """Wait at the exit barrier until all nodes are done, or for so long."""
    record, prefix = user._here(), f"{user.judge.keys.board}{user._here().number}/"
    count, all_done = f"{prefix}done_count", Wait((f"{prefix}all_done",))
    until = user.now() + timeout_s
    user.judge.finishes(user.id, record.number)
    user.program.request(user.program.node.finish)

    def met(trouble: str | None) -> None:
        user.turn(lambda: user.machine.met(record.number, trouble, user.local()))

    def wait(_: object = None) -> None:
        user._do(all_done, SLICE_S, waited)

    def counted(result: object) -> None:
        if result == record.size:
            user._do(Set(all_done.keys[0], b""), timeout_s + SLICE_S, wait)
        else:
            wait()

    def waited(result: object) -> None:
        if user.machine.state is not State.FINISHED:
            return
        if isinstance(result, tuple):
            met(None)
        elif isinstance(result, StoreUnavailable) and user.now() < until:
            user._later(RETRY_S, wait)
        elif isinstance(result, StoreUnavailable):
            user.turn(lambda: user.machine.broke(result))
        else:
            user._do(Get(count), SLICE_S, looked)

    def looked(result: object) -> None:
        if user.machine.state is not State.FINISHED:
            return
        if isinstance(result, Entry) and result.value == b"%d" % record.size:
            met(None)
        elif isinstance(result, StoreUnavailable):
            waited(result)
        elif user.now() >= until:
            met(NOT_IN_TIME)
        else:
            wait()

    user._do(Add(count, 1), timeout_s + SLICE_S, counted)
