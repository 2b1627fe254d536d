"""The table of the current agent: where `RRef(value)` keeps its value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.rpc.rref.table import RRefTable

__all__ = ["NO_AGENT", "current_table", "set_current_table"]

NO_AGENT = (
    "Current RPC agent is not set! Did you initialize the RPC framework "
    "(e.g. by calling `rpc.init_rpc`)?"
)

_table: RRefTable | None = None


def current_table() -> RRefTable:
    """Return the table of the current agent; UsageError if there is no agent."""
    table = _table
    if table is None:
        raise UsageError(NO_AGENT)
    return table


def set_current_table(table: RRefTable | None) -> None:
    """Set the table of the current agent; None if there is no agent any more."""
    global _table  # noqa: PLW0603  # this file exists to hold it
    _table = table
