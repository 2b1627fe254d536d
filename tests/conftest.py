"""What holds for every test: leak checks, and no judgement of anybody's speed."""

from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, settings

from holdfast.testing.heeding import heed_signals
from tests.unit.net.certificates import Certificates, make_certificates

# Leak checks on every test, the `transcript` fixture, and the options of simulations.
pytest_plugins = ["holdfast.testing.plugin"]

# A slow machine is no bug: no deadline for an example, and a failure prints how to repeat it. A
# change is judged by the same examples every time; `--hypothesis-profile=fresh` draws new ones.
for name, same in (("holdfast", True), ("fresh", False)):
    settings.register_profile(
        name,
        deadline=None,
        derandomize=same,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("holdfast")

# A shell ignores some in what it runs in the background, nohup another one; all that tests start
# would inherit it.
if threading.current_thread() is threading.main_thread():
    heed_signals()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Files for TLS, made once."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))
