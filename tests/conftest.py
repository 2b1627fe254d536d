"""What holds for every test: leak checks, and no judgement of speed."""

from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, settings

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError
from holdfast.store.etcd import local_server
from tests.inherited_signals import restore_signals
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
    restore_signals()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is about etcd's v2 API where the etcd of these tests has none."""
    about_v2 = [each for each in items if "etcd-v2" in each.nodeid or "/etcd/v2/" in each.nodeid]
    if about_v2 and _etcd_version() >= (3, 6):
        reason = "this etcd is 3.6 or newer, which has no v2 API"
        for item in about_v2:
            item.add_marker(pytest.mark.skip(reason=reason))


def _etcd_version() -> tuple[int, int]:
    try:
        return local_server._version(
            local_server.find_binary(), Deadline.after(local_server.START_WITHIN_S)
        )
    except HoldfastError:  # no etcd: the tests say so
        return (0, 0)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Files for TLS, made once."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))
