"""Audited load: 200,000 calls of eight workers under every kind of fault, each accounted for."""

from __future__ import annotations

from tests.soak.soak import soak

CALLS, WORKERS, SEED = 200_000, 8, 5


def test_every_call_resolves_and_each_that_succeeds_has_run_once_and_nothing_grows() -> None:
    audit = soak(CALLS, WORKERS, SEED)
    assert audit.calls == CALLS
    assert audit.broken() == [], str(audit)
    assert audit.short() == [], str(audit)
