"""Rendezvous backends by name, open to third parties.

A package adds one by an entry point of the group `holdfast.rendezvous`: a function that takes
`RendezvousParameters` and returns a `Rendezvous`. It is loaded when it is first asked for.
"""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.rendezvous.backends import BACKENDS, Creator
from holdfast.rendezvous.handler import Rendezvous
from holdfast.rendezvous.parameters import RendezvousParameters

__all__ = ["GROUP", "create_rendezvous", "known", "register"]

GROUP = "holdfast.rendezvous"

_registered: dict[str, Creator] = {}


def register(name: str, creator: Creator) -> None:
    """Make a backend known in this process. UsageError if the name is taken by another."""
    if not name or (name in known() and _registered.get(name) is not creator):
        raise UsageError(f"rendezvous backend {name!r:.40}: the name is empty or taken")
    _registered[name] = creator


def known() -> tuple[str, ...]:
    """Return the names of all backends, loaded or not."""
    from importlib import metadata  # takes longer than all of a rendezvous that is ours

    found = {point.name for point in metadata.entry_points(group=GROUP)}
    return tuple(sorted(found | BACKENDS.keys() | _registered.keys()))


def create_rendezvous(parameters: RendezvousParameters) -> Rendezvous:
    """Make the rendezvous that the parameters describe, and take part in it."""
    creator = BACKENDS.get(parameters.backend) or _registered.get(parameters.backend)
    if creator is None:
        creator = _from_package(parameters.backend)
    if creator is None:
        raise UsageError(
            f"rendezvous backend {parameters.backend!r:.40}: unknown; "
            f"known are {', '.join(known())}"
        )
    return creator(parameters)


def _from_package(name: str) -> Creator | None:
    from importlib import metadata

    for point in metadata.entry_points(group=GROUP, name=name):
        try:
            found: Creator = point.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"rendezvous backend {name!r:.40}: {point.value!r:.80} cannot be loaded: {error}"
            ) from None
        return found
    return None
