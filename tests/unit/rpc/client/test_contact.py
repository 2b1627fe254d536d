"""Where a worker can be reached."""

from __future__ import annotations

from holdfast.rpc.client.contact import machine_id


def test_a_machine_is_known_by_its_name() -> None:
    assert machine_id() == machine_id() != ""
