"""What holds for every test: leak checks, and no judgement of anybody's speed."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Leak checks on every test, the `transcript` fixture, and the options of simulations.
pytest_plugins = ["holdfast.testing.plugin"]

# A slow machine is no bug: no deadline for an example, and a failure prints how to repeat it.
settings.register_profile(
    "holdfast", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("holdfast")
