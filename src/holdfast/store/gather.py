"""A barrier and an all-gather over any store: a few operations for each participant.

Every rank writes a key of its own and counts itself; the last one writes the key that all others
wait for. So each rank performs the same number of operations whatever the world's size is.

    NAME/rank/R     rank R is here, and its value
    NAME/count      how many are here
    NAME/done       the size of the world, written when all are here

A name is for one use: put a number or a round into it. The keys stay, so that a rank that comes
late, after all others have gone on, still finds them; a caller that knows that all are through
may delete them.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.clock import Deadline, check_timeout
from holdfast.errors import TimeoutExpired, UsageError
from holdfast.store.ops import check_key
from holdfast.store.store import DEFAULT_TIMEOUT_S, Store

__all__ = ["all_gather", "barrier"]

# Of the time that is left, what is kept for finding out which ranks are missing.
_REPORT_SHARE, _REPORT_MAX_S = 0.1, 2.0
_RANKS_NAMED_MAX = 20


def barrier(
    store: Store,
    name: str,
    rank: int,
    world_size: int,
    *,
    timeout: float | None = DEFAULT_TIMEOUT_S,
) -> None:
    """Wait until all ranks 0 to `world_size` - 1 have called this with the same name.

    TimeoutExpired says which ranks are missing, and `waiting_for` lists them as "rank 3".
    UsageError if the name was used before by this rank, or with another size of the world.
    """
    deadline = Deadline.after(check_timeout(timeout))
    _meet(store, _checked(name, rank, world_size), rank, world_size, b"", deadline)


def all_gather(
    store: Store,
    name: str,
    rank: int,
    world_size: int,
    value: bytes,
    *,
    timeout: float | None = DEFAULT_TIMEOUT_S,
) -> list[bytes]:
    """Give `value`, wait for those of all ranks, and return all of them in the order of the ranks.

    All values together are read at once, so they should be small. Errors are the barrier's.
    """
    deadline = Deadline.after(check_timeout(timeout))
    found = _meet(store, _checked(name, rank, world_size), rank, world_size, value, deadline)
    if found is None:
        found = _arrived(store, name, world_size, deadline)
    if len(found) < world_size:
        raise UsageError(f"name {name!r:.80}: its keys were deleted before rank {rank} read them")
    return [found[peer] for peer in range(world_size)]


def _checked(name: str, rank: int, world_size: int) -> str:
    for what, number in (("rank", rank), ("world_size", world_size)):
        if not isinstance(number, int) or isinstance(number, bool):
            raise UsageError(f"{what} {number!r:.80}: must be an int")
    if world_size < 1:
        raise UsageError(f"world_size {world_size}: must be 1 or more")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank}: must be 0 to {world_size - 1}")
    return check_key(name, "name")


def _meet(
    store: Store, name: str, rank: int, world_size: int, value: bytes, deadline: Deadline
) -> dict[int, bytes] | None:
    """Arrive and wait for all. Returns what the ranks brought if it was read on the way."""
    mine = store.compare_set(f"{name}/rank/{rank}", None, value, timeout=deadline.remaining())
    if not mine.ok:
        raise UsageError(
            f"name {name!r:.80}: rank {rank} has used it before; a name is for one use"
        )
    here = store.add(f"{name}/count", timeout=deadline.remaining())
    size = b"%d" % world_size
    if here > world_size:
        raise UsageError(f"name {name!r:.80}: {here} ranks use it, {world_size} were expected")
    if here == world_size:
        done = store.compare_set(f"{name}/done", None, size, timeout=deadline.remaining()).value
    else:
        left = deadline.remaining()
        wait_s = None if left is None else left - min(_REPORT_SHARE * left, _REPORT_MAX_S)
        try:
            (done,) = store.wait([f"{name}/done"], timeout=wait_s)
        except TimeoutExpired as error:
            return _late(store, name, world_size, deadline, error)
    if done != size:
        raise UsageError(
            f"name {name!r:.80}: others use it with world_size {done!r:.20}, "
            f"here it is {world_size}"
        )
    return None


def _late(
    store: Store, name: str, world_size: int, deadline: Deadline, error: TimeoutExpired
) -> dict[int, bytes]:
    """Name the missing ranks; if none is missing, all have met.

    That happens when a rank died, or ran out of time, between its arrival and its being counted.
    """
    try:
        found = _arrived(store, name, world_size, deadline)
    except TimeoutExpired:
        raise TimeoutExpired(
            f"{name!r:.80}: not all of {world_size} ranks came, and the store did not say which",
            waiting_for=error.waiting_for,
        ) from error
    missing = [peer for peer in range(world_size) if peer not in found]
    if not missing:
        with suppress(TimeoutExpired):  # it helps ranks that wait without a limit
            store.compare_set(
                f"{name}/done", None, b"%d" % world_size, timeout=deadline.remaining()
            )
        return found
    named = ", ".join(map(str, missing[:_RANKS_NAMED_MAX]))
    more = f" and {len(missing) - _RANKS_NAMED_MAX} more" * (len(missing) > _RANKS_NAMED_MAX)
    raise TimeoutExpired(
        f"{name!r:.80}: missing rank{'s' * (len(missing) > 1)} {named}{more} of {world_size}",
        waiting_for=tuple(f"rank {peer}" for peer in missing),
    ) from error


def _arrived(store: Store, name: str, world_size: int, deadline: Deadline) -> dict[int, bytes]:
    prefix = f"{name}/rank/"
    entries = store.list_prefix(prefix, timeout=deadline.remaining())
    values = {entry.key: entry.value for entry in entries}
    ranks = ((peer, values.get(f"{prefix}{peer}")) for peer in range(world_size))
    return {peer: value for peer, value in ranks if value is not None}
