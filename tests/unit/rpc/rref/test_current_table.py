"""The table of the current agent."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.rpc import current
from holdfast.rpc.rref.current_table import current_table
from holdfast.rpc.rref.rref import RRef
from tests.unit.rpc.world import agents


def test_it_is_that_of_the_current_agent() -> None:
    with agents(None) as (one,):
        current.set_agent(one)
        try:
            assert current_table() is one.rrefs
            assert RRef(5).local_value() == 5
        finally:
            current.reset_agent()
    with pytest.raises(UsageError, match="Current RPC agent is not set!"):
        current_table()
    with pytest.raises(UsageError, match="Current RPC agent is not set!"):
        RRef(5)
