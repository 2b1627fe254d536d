"""What carries messages, by name; open to others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.rpc import backends
from holdfast.rpc.api import init_rpc, rpc_sync, shutdown
from holdfast.rpc.backends import known_backends, make_transport, register_backend
from holdfast.rpc.client.transport import MessageTransport
from holdfast.rpc.current import current_agent
from holdfast.store.memory import MemoryStore
from tests.unit.rpc.world import Unchanged


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_makers", dict(backends._makers))


class Mine(Unchanged):
    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)


def make_mine(options: Mapping[str, Any]) -> MessageTransport:
    return Mine(options)


def test_the_plain_one() -> None:
    assert make_transport("default", {}) is None
    with pytest.raises(UsageError, match=r"default: takes no options, got \['a', 'b'\]"):
        make_transport("default", {"b": 1, "a": 2})


@pytest.mark.parametrize("name", ["default", "faulty"])
def test_options_have_names(name: str) -> None:
    with pytest.raises(UsageError, match="options 'drop': must be a mapping of names to values"):
        make_transport(name, "drop")  # type: ignore[arg-type]


def test_the_faulty_one_is_there_when_it_is_asked_for() -> None:
    transport = make_transport("faulty", {"plan": "drop"})
    assert transport is not None
    assert type(transport).__name__ == "FaultyTransport"
    transport.close()


def test_one_of_ones_own() -> None:
    register_backend("mine", make_mine)
    register_backend("mine", make_mine)  # the same once more: its module was imported again
    assert known_backends() == ("default", "faulty", "mine")
    init_rpc("w0", store=MemoryStore(), backend="mine", options={"a": 1})
    try:
        transport = current_agent().transport
        assert isinstance(transport, Mine)
        assert transport.options == {"a": 1}
        assert rpc_sync("w0", divmod, args=(7, 2)) == (3, 1)
    finally:
        shutdown()


@pytest.mark.parametrize("name", ["default", "mine"])
def test_a_name_has_one_owner(name: str) -> None:
    register_backend("mine", make_mine)
    with pytest.raises(UsageError, match=f"RPC backend '{name}': the name is taken"):
        register_backend(name, lambda options: Unchanged())


def test_an_unknown_one() -> None:
    with pytest.raises(UsageError, match="RPC backend 'x': unknown; there are default, faulty"):
        make_transport("x", {})
