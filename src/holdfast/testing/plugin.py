"""A pytest plugin: leak checks on every test, transcripts, seeds for simulations, RPC workers.

Load it with `-p holdfast.testing.plugin`, or in the top conftest.py by
`pytest_plugins = ["holdfast.testing.plugin"]`.

Leak checks. A test that leaves a thread, an open file, a process or a temporary file behind gets
an error that lists them. What fixtures of a wider scope hold is not blamed on the tests that use
them; if something is left after the last of these fixtures is gone, the session's end reports
it. While tests run, temporary files go to a directory of that run. A test that cannot
help it says so: `@pytest.mark.allow_leaks("why")`.

Fixtures: `transcript` replays a story, `sim_range` chooses seeds, `rpc_world` starts workers of
RPC; the last one can be had without the rest, see `rpcfixture.py`.

Options: `--rewrite` writes the real outputs into transcripts; `--sim-seeds=N` and `--sim-start=S`
choose how many seeds a simulation runs, and from which. The ini value `leak_grace_s` (2 by
default) is how long a test's threads and processes may take to end after it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.testing.leaks import (
    MARK,
    Leak,
    Snapshot,
    describe_leaks,
    find_leaks,
    mark,
    take_snapshot,
)
from holdfast.testing.transcript import Command, run_transcript

__all__: list[str] = []

pytest_plugins = ["holdfast.testing.rpcfixture"]

_KNOWN = pytest.StashKey[set[Leak]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast")
    group.addoption(
        "--rewrite",
        action="store_true",
        help="write the real outputs into the transcripts instead of comparing them",
    )
    group.addoption(
        "--sim-seeds", type=int, metavar="N", help="number of seeds that each simulation runs"
    )
    group.addoption(
        "--sim-start", type=int, default=0, metavar="S", help="the first of these seeds"
    )
    parser.addini("leak_grace_s", "seconds in which what a test started may end", default="2")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "allow_leaks(why): do not check this test for leaks")
    config.stash[_KNOWN] = set()


@pytest.fixture(scope="session", autouse=True)
def _session_leaks(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("left-behind")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(directory))
        patch.setenv("TMPDIR", str(directory))
        patch.setenv(MARK, mark())
        before = take_snapshot(directory)
        yield directory
        leaks = _new_leaks(before, pytestconfig)
    if leaks:
        pytest.fail(describe_leaks(leaks, "fixtures of the session or of a module"), pytrace=False)


def _new_leaks(before: Snapshot, config: pytest.Config) -> list[Leak]:
    """Find what was left behind and not reported before, and remember it as reported."""
    known = config.stash[_KNOWN]
    leaks = find_leaks(before, grace_s=0)
    if not known.issuperset(leaks):
        leaks = find_leaks(before, grace_s=float(config.getini("leak_grace_s")))
    new = [leak for leak in leaks if leak not in known]
    known.update(new)
    return new


@pytest.fixture(autouse=True)
def _test_leaks(request: pytest.FixtureRequest, _session_leaks: Path) -> Iterator[None]:
    before = take_snapshot(_session_leaks)
    yield
    leaks = _new_leaks(before, request.config)
    if leaks and not request.node.get_closest_marker("allow_leaks"):
        pytest.fail(describe_leaks(leaks, f"the test {request.node.name}"), pytrace=False)


@pytest.fixture
def transcript(pytestconfig: pytest.Config) -> Callable[[Path, Callable[[Command], str]], None]:
    """Replay a transcript: `transcript(path, handle)`; honours `--rewrite`."""

    def run(path: Path, handle: Callable[[Command], str]) -> None:
        run_transcript(path, handle, rewrite=pytestconfig.getoption("--rewrite"))

    return run


@pytest.fixture(scope="session")
def sim_range(pytestconfig: pytest.Config) -> Callable[[int], range]:
    """Choose the seeds of a simulation: `sim_range(default_number)`; honours the options."""

    def choose(default: int) -> range:
        number = pytestconfig.getoption("--sim-seeds")
        start: int = pytestconfig.getoption("--sim-start")
        return range(start, start + (default if number is None else number))

    return choose
