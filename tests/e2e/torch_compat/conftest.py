"""Fixtures of the tests by torch's names: they are bound to ours, here and in what is started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.jobs import BACKENDS

BOUND = ("torch.", "tests.e2e.torch_compat")
TORCHS_CACHE = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Bind torch's names: for these tests in this process, for good in those that they start."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry

    from holdfast.torch_compat import SITE
    from holdfast.torch_compat.elastic.names import register_backends, replacements

    with pytest.MonkeyPatch.context() as patched:
        for before, now in replacements():
            for module in [sys.modules[name] for name in sys.modules if name.startswith(BOUND)]:
                for key, value in list(vars(module).items()):
                    if value is before:
                        patched.setattr(module, key, now)
        patched.setattr(registry, "_registry", dict(registry._registry))
        register_backends()
        path = os.environ.get("PYTHONPATH")
        patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(SITE), path])))
        patched.setenv(TORCHS_CACHE, str(tmp_path_factory.mktemp("torch")))  # its logger makes one
        yield


@pytest.fixture(autouse=True)
def _plain_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin without what torch's launcher reads, and end with the signals that we had.

    Its agents take them over for good.
    """
    for name in list(os.environ):
        if name.startswith(("TORCH", "PET_")) and name != TORCHS_CACHE:
            monkeypatch.delenv(name)
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    os.environ.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def endpoint(backend: str, etcd: str) -> str:
    """Where a node alone meets itself."""
    return "localhost:0" if backend == "c10d" else etcd


@pytest.fixture
def log_dir(tmp_path: Path) -> str:
    return str(tmp_path / "logs")
