"""An agent's end of the control channel, over real sockets."""

from __future__ import annotations

import os
import pwd
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.control import server as server_module
from holdfast.control.client import ask
from holdfast.control.folder import EntryFolder, open_folder
from holdfast.control.frames import receive_frame, send_frame
from holdfast.control.jobs import AgentEntry
from holdfast.control.messages import (
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    AskStatus,
    AskStop,
    Request,
    decode_reply,
)
from holdfast.control.server import CONNECTIONS_MAX, Caller, ControlServer
from holdfast.errors import Refused, Unavailable
from tests.waiting import until

ENTRY = AgentEntry(token="t1", run="a", host="vm", pid=os.getpid(), started_at=1.0)
Answer = Callable[[Request, Caller], dict[str, Any]]


def soon() -> Deadline:
    return Deadline.after(60.0)


@pytest.fixture
def folder(tmp_path: Path) -> EntryFolder:
    return open_folder(tmp_path, host="vm")


@pytest.fixture
def serve(folder: EntryFolder) -> Iterator[Callable[[Answer], ControlServer]]:
    servers = []

    def make(answer: Answer) -> ControlServer:
        server = ControlServer(folder, ENTRY, answer)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.close()


def test_a_request_is_answered_and_the_caller_is_known(
    folder: EntryFolder, serve: Callable[[Answer], ControlServer]
) -> None:
    """CH-1, CH-4."""
    server = serve(lambda request, caller: {"pid": caller.pid, "user": caller.user})
    assert folder.entries() == [ENTRY]
    assert ask(folder, ENTRY, AskStatus(), soon()) == {
        "pid": os.getpid(),
        "user": pwd.getpwuid(os.geteuid()).pw_name,
    }
    server.close()
    server.close()
    assert os.listdir(folder.path) == []


def test_another_user_is_refused(
    folder: EntryFolder,
    serve: Callable[[Answer], ControlServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CH-1."""

    def refuse(sock: socket.socket, group: int | None) -> None:
        assert group is None
        raise Refused("the peer runs as user 7")

    monkeypatch.setattr(server_module, "check_peer", refuse)
    serve(lambda request, caller: pytest.fail("was asked"))
    with pytest.raises(Refused, match="user 7"):
        ask(folder, ENTRY, AskStatus(), soon())


def test_what_goes_wrong_is_told_to_the_command_alone(
    folder: EntryFolder, serve: Callable[[Answer], ControlServer], caplog: pytest.LogCaptureFixture
) -> None:
    """CH-3."""

    def answer(request: Request, caller: Caller) -> dict[str, Any]:
        if isinstance(request, AskStop):
            raise Unavailable("not yet")
        raise KeyError("a bug")

    serve(answer)
    with pytest.raises(Refused, match="^not yet$"):
        ask(folder, ENTRY, AskStop(), soon())
    with pytest.raises(Refused, match="a bug in holdfast: KeyError"):
        ask(folder, ENTRY, AskStatus(), soon())
    assert "a request could not be answered" in caplog.text


def test_a_request_that_is_too_long_is_refused(
    folder: EntryFolder, serve: Callable[[Answer], ControlServer]
) -> None:
    """CH-2."""
    serve(lambda request, caller: pytest.fail("was asked"))
    with socket.socket(socket.AF_UNIX) as sock:
        folder.connect(sock, "t1")
        sock.sendall((REQUEST_BYTES_MAX + 1).to_bytes(4, "big"))
        with pytest.raises(Refused, match=f"the cap is {REQUEST_BYTES_MAX}"):
            decode_reply(receive_frame(sock, REPLY_BYTES_MAX, soon()))


def test_a_command_that_sends_nothing_is_given_up(
    folder: EntryFolder,
    serve: Callable[[Answer], ControlServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CH-2."""
    monkeypatch.setattr(server_module, "REQUEST_S", 0.01)
    serve(lambda request, caller: pytest.fail("was asked"))
    with socket.socket(socket.AF_UNIX) as sock:
        folder.connect(sock, "t1")
        with pytest.raises(Refused, match="no whole message came in time"):
            decode_reply(receive_frame(sock, REPLY_BYTES_MAX, soon()))


def test_too_many_at_once_are_turned_away(
    folder: EntryFolder, serve: Callable[[Answer], ControlServer]
) -> None:
    """CH-2."""
    go_on, asked = threading.Event(), threading.Semaphore(0)

    def answer(request: Request, caller: Caller) -> dict[str, Any]:
        asked.release()
        go_on.wait(60.0)
        return {}

    def is_answered() -> bool:
        try:
            return ask(folder, ENTRY, AskStatus(), soon()) == {}
        except Unavailable:  # its threads are ending still
            return False

    serve(answer)
    socks = [socket.socket(socket.AF_UNIX) for _ in range(CONNECTIONS_MAX + 1)]
    try:
        for sock in socks[:-1]:
            folder.connect(sock, "t1")
            send_frame(sock, b'{"version": 1, "ask": "status"}', 100, soon())
            assert asked.acquire(timeout=60.0)
        folder.connect(socks[-1], "t1")
        with pytest.raises(OSError, match="closed"):
            receive_frame(socks[-1], 100, soon())
        go_on.set()
        for sock in socks[:-1]:
            assert decode_reply(receive_frame(sock, 100, soon())) == {}
            sock.close()
        until(is_answered)
    finally:
        go_on.set()
        for sock in socks:
            sock.close()


def test_no_socket_can_be_had(folder: EntryFolder) -> None:
    (folder.path / "t1.sock").write_text("")
    with pytest.raises(Unavailable, match="Address already in use"):
        ControlServer(folder, ENTRY, lambda request, caller: {}).start()
    assert folder.entries() == []


def test_a_forked_child_does_not_keep_the_socket_open(
    folder: EntryFolder, serve: Callable[[Answer], ControlServer]
) -> None:
    server = serve(lambda request, caller: {})
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)  # until the parent is done
        os._exit(0)
    os.close(reader)
    try:
        server.close()
        folder.write(ENTRY)
        with pytest.raises(Unavailable, match="has ended"):
            ask(folder, ENTRY, AskStatus(), soon())
    finally:
        os.close(writer)
        os.waitpid(child, 0)
