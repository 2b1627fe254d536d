"""The public interface of the rendezvous as a user types it. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

import holdfast
from holdfast import Rendezvous, RendezvousParameters, Round, Store, create_rendezvous
from holdfast.errors import RendezvousClosed, RendezvousLost, RendezvousTimedOut
from holdfast.ids import NodeId, RunId
from holdfast.rendezvous.handler import RunEnd
from holdfast.rendezvous.model import Announcement, Member
from holdfast.rendezvous.parameters import parse_config
from holdfast.rendezvous.ranks import RankPolicy
from holdfast.rendezvous.registry import known, register


def saying() -> RendezvousParameters:
    assert_type(parse_config("join_timeout=60"), dict[str, str])
    RendezvousParameters(
        "c10d", "node1:29400", "job", 2, 4, config={"timeout": 900, "is_host": True}
    )
    return RendezvousParameters(
        backend="static",
        endpoint="node1:29500",
        run_id="job",
        min_nodes=2,
        max_nodes=2,
        local_addr="10.0.0.7",
        config={"rank": "1", **parse_config("read_timeout=30")},
    )


def taking_part(parameters: RendezvousParameters) -> None:
    with create_rendezvous(parameters) as rendezvous:
        assert_type(rendezvous, Rendezvous)
        here = rendezvous.next_round()
        assert_type(here, Round)
        assert_type((here.number, here.rank, here.world_size), tuple[int, int, int])
        assert_type((here.master_address, here.master_port), tuple[str, int])
        assert_type(here.store, Store)
        assert_type(here.members, Sequence[Member])
        assert_type(here.failures, int)
        rendezvous.next_round("a worker failed", timeout=30)
        assert_type(rendezvous.over(), str | None)
        assert_type(rendezvous.closed(), str | None)
        assert_type(rendezvous.nodes_waiting(), int)
        failures = rendezvous.count_failure(timeout=None)
        assert_type((failures.count, failures.times), tuple[int, tuple[float, ...]])
        assert_type(rendezvous.run_id, RunId)
        rendezvous.subscribe(lambda: None)
        rendezvous.finish()
        assert_type(rendezvous.ended(), RunEnd | None)
        rendezvous.close("the job is done")
        rendezvous.close("it failed too often", failed=True)
        assert_type(rendezvous.shutdown(), bool)


def failing(rendezvous: holdfast.Rendezvous) -> holdfast.Round | None:
    try:
        return rendezvous.next_round()
    except RendezvousTimedOut as error:
        assert_type(error.waiting_for, tuple[str, ...])
    except (RendezvousClosed, RendezvousLost) as error:
        assert_type(error.address, str)
        if isinstance(error, RendezvousClosed):
            assert_type(error.failed, bool)
    return None


def by_name(chosen: Sequence[Announcement], previous: Sequence[NodeId]) -> list[Announcement]:
    return sorted(chosen, key=lambda node: node.host)


policy: RankPolicy = by_name


def offering(parameters: RendezvousParameters) -> None:
    register("mine", create_rendezvous)
    assert_type(known(), tuple[str, ...])


def mistakes(rendezvous: Rendezvous, here: Round) -> None:
    RendezvousParameters("c10d", "a:1", "job", 1)  # type: ignore[call-arg]
    RendezvousParameters("c10d", "a:1", "job", "1", 2)  # type: ignore[arg-type]
    rendezvous.next_round(30.0)  # type: ignore[arg-type]
    rendezvous.next_round("why", 30.0)  # type: ignore[call-arg]
    here.rank = 1  # type: ignore[misc]
    register("mine", 7)  # type: ignore[arg-type]
