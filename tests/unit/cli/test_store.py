"""The verbs of `holdfast store`, against a real server; bad arguments reach none."""

from __future__ import annotations

import resource
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli import store as store_module
from holdfast.cli.store import _shown
from holdfast.clock import Deadline
from holdfast.store.memory import MemoryStore
from holdfast.store.open import open_store, serve_store
from holdfast.store.ops import Change
from holdfast.store.store import Store
from tests.unit.cli.conftest import Run
from tests.waiting import until


@pytest.fixture
def store(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store that is served, and to which HOLDFAST_STORE leads."""
    with serve_store() as server, open_store(server.endpoint) as store:
        monkeypatch.setenv("HOLDFAST_STORE", server.endpoint)
        yield store


def test_set_and_get(run: Run, store: Store) -> None:
    assert run("store", "set", "k", "hello") == (0, "", "")
    assert run("store", "get", "k") == (0, "hello\n", "")
    assert store.get("k") == b"hello"


def test_what_is_not_there_gives_1(run: Run, store: Store) -> None:
    assert run("store", "get", "k") == (1, "", "")
    assert run("store", "delete", "k") == (1, "", "")
    store.set("k", b"")
    assert run("store", "get", "k") == (0, "\n", "")
    assert run("store", "delete", "k") == (0, "", "")
    assert store.get("k") is None


def test_add_and_append(run: Run, store: Store) -> None:
    assert run("store", "add", "n", "3") == (0, "3\n", "")
    assert run("store", "add", "n", "-5") == (0, "-2\n", "")
    assert run("store", "append", "k", "ab") == (0, "2\n", "")
    assert run("store", "append", "k", "c") == (0, "3\n", "")
    assert store.multi_get(["n", "k"]) == [b"-2", b"abc"]


def test_values_are_bytes_as_the_shell_gives_them(run: Run, store: Store) -> None:
    assert run("store", "set", "k", "é\udcff").code == 0
    assert store.get("k") == "é".encode() + b"\xff"
    assert run("store", "set", "k", "--", "-v").code == 0
    assert store.get("k") == b"-v"


def test_list(run: Run, store: Store) -> None:
    store.multi_set({"b/é": b"", "b/1": b"", "a": b""})
    assert run("store", "list").out == "a\nb/1\nb/é\n"
    assert run("store", "list", "b/") == (0, "b/1\nb/é\n", "")
    assert run("store", "list", "c") == (0, "", "")


def test_wait_finds_a_key_that_comes_later(run: Run, store: Store) -> None:
    writer = threading.Timer(0.05, store.set, ("k", b"here"))
    writer.start()
    try:
        assert run("store", "wait", "k", "--timeout", "inf") == (0, "here\n", "")
    finally:
        writer.join()


def test_wait_times_out(run: Run, store: Store) -> None:
    code, out, err = run("store", "wait", "k", "--timeout", "1")
    assert (code, out) == (75, "")
    assert err.startswith("holdfast: ")
    assert "'k'" in err


def test_opening_and_using_share_one_limit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float | None] = []

    class Recorder(MemoryStore):
        def get(self, key: str, *, timeout: float | None = None) -> bytes | None:
            given.append(timeout)
            return None

    def slow(endpoint: str | None, *, timeout: float) -> Store:
        given.append(timeout)
        until(Deadline.after(timeout).passed)
        return Recorder()

    monkeypatch.setattr(store_module, "open_store", slow)
    assert run("store", "get", "k", "--timeout", "0.01").code == 1
    assert given == [0.01, 0.0]


@pytest.mark.parametrize("error", [ValueError("no"), PermissionError(1, "no")])
def test_a_limit_that_cannot_be_raised_stops_no_server(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(what: int, limits: tuple[int, int]) -> None:
        raise error

    monkeypatch.setattr(resource, "setrlimit", refuse)
    code, _, err = run("store", "serve", "tcp://0.0.0.0:0")  # comes to what is wrong with that
    assert code == 2
    assert "can be reached from other hosts" in err


def test_a_change_is_one_line() -> None:
    assert _shown(Change("k", b"v", 7)) == "7\tset\tk\tv"
    assert _shown(Change("k", b"", 7)) == "7\tset\tk\t"
    assert _shown(Change("k", None, 8)) == "8\tdeleted\tk"
    awkward = Change("a\tb\n", "é\n".encode() + b"\xff\0", 9)
    assert _shown(awkward).split("\t") == ["9", "set", r"a\tb\n", r"é\n\xff\x00"]


def test_what_the_server_refuses_is_wrong_use_too(run: Run, store: Store) -> None:
    store.set("k", b"word")
    assert run("store", "add", "k", "1") == (
        2,
        "",
        "holdfast: add: key 'k' holds b'word', which is not a decimal integer\n",
    )


SIZE = "8193 bytes, at most 8192 are allowed"
NUMBER = "must be an integer of 64 bits, signed"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["get", ""], "argument KEY: key '': must not be empty"),
        (["get", "\udcff"], r"argument KEY: key '\udcff': must be encodable as UTF-8"),
        (["set", "k" * 8193, "v"], f"argument KEY: key '{'k' * 40}'…: {SIZE}"),
        (["list", "p" * 8193], f"argument PREFIX: prefix '{'p' * 40}'…: {SIZE}"),
        (["add", "k", "x"], f"argument AMOUNT: 'x' {NUMBER}"),
        (["add", "k", str(1 << 63)], f"argument AMOUNT: '{1 << 63}' {NUMBER}"),
        (["add", "k", "9" * 5000], f"argument AMOUNT: '{'9' * 79} {NUMBER}"),
        (
            ["wait", "k", "--timeout=-1"],
            "argument --timeout: '-1' must be zero or more seconds, or inf",
        ),
    ],
)
def test_bad_arguments_start_nothing(run: Run, home: Path, argv: list[str], line: str) -> None:
    """There is no server at this endpoint; and on the way to it a secret would be made."""
    verb = f"holdfast store {argv[0]}"
    done = run("store", *argv, "--store", "tcp://127.0.0.1:7")
    assert done == (2, "", f"{verb}: {line} (see {verb} --help)\n")
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("HOLDFAST_STORED", "x", "environment variable HOLDFAST_STORED: unknown"),
        (
            "HOLDFAST_SECRET",
            "hunter2",
            "HOLDFAST_SECRET: secret of 7 bytes: at least 16 are needed",
        ),
        ("HOLDFAST_SECRET", "", "HOLDFAST_SECRET is empty: give it a secret, or unset it"),
        ("HOLDFAST_SECRET_FILE", "/gone", "HOLDFAST_SECRET_FILE: secret file /gone: No such file"),
    ],
)
@pytest.mark.parametrize(
    "argv", [["get", "k", "--store", "tcp://127.0.0.1:7"], ["serve", "tcp://127.0.0.1:0"]]
)
def test_a_bad_environment_starts_nothing(
    run: Run,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    line: str,
    argv: list[str],
) -> None:
    monkeypatch.setenv(variable, value)
    code, out, err = run("store", *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"holdfast: {line}")
    assert list(home.iterdir()) == []


def test_a_bad_endpoint_in_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "x")
    code, out, err = run("store", "get", "k")
    assert (code, out) == (2, "")
    assert err.startswith("holdfast: HOLDFAST_STORE: endpoint 'x': must be scheme://")


def test_a_server_that_cannot_start_leaves_signals_as_they_were(run: Run) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert run("store", "serve", "tcp://0.0.0.0:0").code == 2
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_no_server(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = run("store", "get", "k", "--store", endpoint, "--timeout", "0.05")
    assert (code, out) == (69, "")
    assert err.startswith(f"holdfast: no store at {endpoint} in time: cannot connect to ")
