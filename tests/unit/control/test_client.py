"""A command's end of the control channel."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.control import client
from holdfast.control.client import AgentGone, ask, ask_all
from holdfast.control.folder import EntryFolder, open_folder
from holdfast.control.jobs import AgentEntry
from holdfast.control.messages import AskStatus, Request
from holdfast.control.server import Caller, ControlServer
from holdfast.errors import Refused, TimeoutExpired, Unavailable
from tests.waiting import with_more_time


def entry(number: int) -> AgentEntry:
    return AgentEntry(token=f"t{number}", run="a", host="vm", pid=number, started_at=1.0)


@pytest.fixture
def folder(tmp_path: Path) -> EntryFolder:
    return open_folder(tmp_path, host="vm")


@pytest.fixture
def silent(folder: EntryFolder) -> Iterator[AgentEntry]:
    """An agent that is stopped: its socket is there, and nothing reads."""
    with socket.socket(socket.AF_UNIX) as listener:
        folder.bind(listener, "t9")
        listener.listen()
        folder.write(entry(9))
        yield entry(9)


def soon() -> Deadline:
    return Deadline.after(60.0)


def test_the_entry_of_a_dead_agent_is_cleared(folder: EntryFolder) -> None:
    """CC-2."""
    with socket.socket(socket.AF_UNIX) as listener:  # killed: its socket's file is left
        folder.bind(listener, "t1")
    folder.write(entry(1))
    folder.write(entry(2))
    for number in (1, 2):
        with pytest.raises(AgentGone, match=f"process {number} has ended"):
            ask(folder, entry(number), AskStatus(), soon())
    assert list(folder.path.iterdir()) == []


def test_an_agent_that_does_not_answer_is_named_and_stays(
    folder: EntryFolder, silent: AgentEntry
) -> None:
    """CC-1, CC-2."""
    with pytest.raises(TimeoutExpired, match="process 9 does not answer: is it stopped"):
        ask(folder, silent, AskStatus(), Deadline.after(0.01))
    assert folder.entries() == [silent]


def test_an_answer_of_another_user_is_not_read(
    folder: EntryFolder, silent: AgentEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CC-3."""

    def refuse(sock: socket.socket, group: int | None) -> None:
        raise Refused("the peer runs as user 7")

    monkeypatch.setattr(client, "check_peer", refuse)
    with pytest.raises(Refused, match="user 7"):
        ask(folder, silent, AskStatus(), soon())


def test_an_agent_that_hangs_up_is_told(folder: EntryFolder) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        folder.bind(listener, "t1")
        listener.listen()
        listener.settimeout(0)
        with pytest.MonkeyPatch.context() as patch:

            def hang_up(sock: socket.socket, group: int | None) -> None:
                listener.accept()[0].close()

            patch.setattr(client, "check_peer", hang_up)
            with pytest.raises(Unavailable, match="the agent with process 1: "):
                ask(folder, entry(1), AskStatus(), soon())


def tell(number: int, request: Request, caller: Caller) -> dict[str, Any]:
    return {"number": number}


def test_many_are_asked_at_once(folder: EntryFolder, silent: AgentEntry) -> None:
    """CC-1."""
    with ExitStack() as stack:
        for number in (1, 2, 3):
            server = ControlServer(folder, entry(number), partial(tell, number))
            server.start()
            stack.callback(server.close)

        def attempt(seconds: float) -> None:
            folder.write(entry(4))  # dead
            answers = ask_all(folder, folder.entries(), AskStatus(), seconds)
            found = [(answer.entry.pid, answer.fields) for answer in answers]
            assert found == [(1, {"number": 1}), (2, {"number": 2}), (3, {"number": 3}), (9, None)]
            assert isinstance(answers[-1].error, TimeoutExpired)

        with_more_time(attempt)
    assert ask_all(folder, [], AskStatus(), 1.0) == []
