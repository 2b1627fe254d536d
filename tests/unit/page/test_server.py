"""The server of the page, asked as a browser and as a hostile client would."""

from __future__ import annotations

import http.client
import json
import queue
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.net.address import Address
from holdfast.page import server as page_server
from holdfast.page.server import PageServer
from holdfast.page.source import JobNews

WAIT_S = 60.0
LOCAL = Address("127.0.0.1", 0)


def agent(**more: Any) -> dict[str, Any]:
    told = {"run": "j", "host": "vm", "pid": 7, "state": "running", "round": 1, "node": 0}
    return told | {"started_at": 1.0} | more


class Source:
    """A job that says what a test lets it say."""

    def __init__(self) -> None:
        self.news: JobNews | None = JobNews([agent()], [], [])
        self.polls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.asked: list[tuple[int, ...] | None] = []
        self.hold: threading.Event | None = None

    def poll(self) -> JobNews | None:
        self.polls.put(None)
        return self.news

    def stacks(self, ranks: tuple[int, ...] | None) -> tuple[list[dict[str, Any]], list[str]]:
        self.asked.append(ranks)
        if self.hold is not None:
            assert self.hold.wait(WAIT_S)
        stack = {"rank": 3, "text": "", "state": "runs", "why": ""}
        return [stack], ["no answer: x"]


class Client:
    """Asks the server of a link."""

    def __init__(self, link: str) -> None:
        found = re.fullmatch(r"http://(127\.0\.0\.1:\d+)/\?token=([a-z0-9]{32})", link)
        assert found is not None, link
        self.host, self.token = found.groups()
        self.address = Address("127.0.0.1", int(self.host.rpartition(":")[2]))
        status, headers, self.html = self.ask(f"/?token={self.token}")
        assert status == 200
        self.cookie = headers["Set-Cookie"].partition(";")[0]

    def ask(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        with closing(http.client.HTTPConnection(*self.address, timeout=WAIT_S)) as connection:
            connection.request(method, path, headers=headers)
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read().decode()

    def get(self, path: str) -> tuple[int, Any]:
        status, headers, text = self.ask(path, Cookie=self.cookie)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        return status, json.loads(text)

    def events(self) -> Events:
        return Events(self.address, self.cookie)


class Events:
    """A stream of server-sent events."""

    def __init__(self, address: Address, cookie: str) -> None:
        self._sock = socket.create_connection(address, timeout=WAIT_S)
        head = f"GET /events HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n"
        self._sock.sendall(head.encode())
        self._file = self._sock.makefile("rb")
        self.status = self._file.readline().split()[1]
        while self._file.readline().strip():
            pass

    def next(self) -> tuple[str, Any]:
        lines = [self._file.readline().decode() for _ in range(3)]
        name, data = lines[0], lines[1]
        return name.removeprefix("event: ").strip(), json.loads(data.removeprefix("data: "))

    def close(self) -> None:
        self._file.close()
        self._sock.close()


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def serve(source: Source) -> Iterator[Callable[..., tuple[PageServer, Client]]]:
    with ExitStack() as stack:

        def serve(**given: Any) -> tuple[PageServer, Client]:
            server = PageServer(LOCAL, source, every_s=0.01, **given)
            link = server.start()
            stack.callback(server.close)
            return server, Client(link)

        yield serve


Serve = Callable[..., tuple[PageServer, Client]]


def test_the_page_is_given_by_the_link_and_then_by_the_cookie(serve: Serve) -> None:
    _, client = serve()
    status, _, html = client.ask("/", Cookie=client.cookie)
    assert (status, html) == (200, client.html)
    for path in ("/", "/?token=x", "/events", "/stacks", "/logs?rank=0&out=0&err=0"):
        assert client.ask(path)[0] == 403
    assert client.get("/nowhere") == (404, {"error": "there is no such page"})


def test_a_rebinding_attempt_is_refused(serve: Serve) -> None:
    _, client = serve()
    status, _, text = client.ask(
        f"/?token={client.token}", Host=f"evil.example:{client.address.port}"
    )
    assert (status, "html" in text) == (421, False)
    assert client.ask("/events", Host="evil.example", Cookie=client.cookie)[0] == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_pw1_nothing_can_be_changed(serve: Serve, method: str) -> None:
    _, client = serve()
    assert client.ask("/stacks", method, Cookie=client.cookie)[0] == 405


def test_the_state_comes_and_then_what_changes(serve: Serve, source: Source) -> None:
    _, client = serve()
    with closing(client.events()) as events:
        name, state = events.next()
        assert (name, state["job"]["run"]) == ("state", "j")
        source.news = JobNews([agent(reason="<b>other</b>")], [], [])
        name, change = events.next()
        assert (name, change["job"]["reason"]) == ("change", "<b>other</b>")
        source.news = JobNews([], ["no answer: x"], [])
        assert events.next() == ("change", {"missing": ["no answer: x"]})
    # A second one has the state at once.
    with closing(client.events()) as events:
        assert events.next()[1]["missing"] == ["no answer: x"]


def test_pw2_nothing_is_asked_while_no_page_is_open(serve: Serve, source: Source) -> None:
    _, client = serve()
    client.ask("/", Cookie=client.cookie)
    assert source.polls.empty()
    with closing(client.events()) as events:
        events.next()
        source.polls.get(timeout=WAIT_S)


def test_pw3_the_last_state_is_sent_and_everything_ends(serve: Serve, source: Source) -> None:
    server, client = serve()
    with closing(client.events()) as events:
        events.next()
        source.news = JobNews([agent(ending="succeeded")], [], [])
        server.close()
        assert events.next()[1]["job"]["ending"] == "succeeded"
        assert events.next() == ("end", {})
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(client.address, timeout=WAIT_S)


def test_the_end_of_the_job_is_noticed(serve: Serve, source: Source) -> None:
    server, _ = serve(always=True)
    source.polls.get(timeout=WAIT_S)
    assert not server.ended.is_set()
    source.news = None
    assert server.ended.wait(WAIT_S)


def test_stacks_are_merged(serve: Serve, source: Source) -> None:
    _, client = serve()
    status, found = client.get("/stacks")
    assert (status, found["missing"]) == (200, ["no answer: x"])
    assert found["classes"][0]["ranks"] == "rank 3"
    assert client.get("/stacks?rank=3")[0] == 200
    assert source.asked == [None, (3,)]


@pytest.mark.parametrize(
    "path",
    [
        *("/stacks?rank=x", "/stacks?rank=-1", "/logs", "/logs?rank=1&out=0", "/logs?rank=²"),
        f"/logs?rank=1&out={2**53}&err=0",
        "/logs?rank=../../etc/passwd&out=0&err=0",
    ],
)
def test_what_is_no_number_is_refused(serve: Serve, path: str) -> None:
    _, client = serve()
    status, found = client.get(path.encode("ascii", "replace").decode())
    assert status == 400
    assert found["error"].endswith("must be 0, 1, 2 ...")


def test_pw1_requests_that_block_are_few_and_delay_no_other(
    serve: Serve, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "TASKS_MAX", 1)
    source.hold = threading.Event()
    _, client = serve()
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(client.get("/stacks")[0]))
    asking.start()
    try:
        while not source.asked:
            assert client.ask("/", Cookie=client.cookie)[0] == 200
        assert client.get("/stacks") == (503, {"error": "too many requests are under way"})
    finally:
        source.hold.set()
        asking.join(WAIT_S)
    assert answers == [200]
    assert client.get("/stacks")[0] == 200


def test_logs_are_read_on_from_where_the_page_is(
    serve: Serve, source: Source, tmp_path: Path
) -> None:
    folder = tmp_path / "attempt_1" / "0"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text("one\n<script>\n")
    attempts = [{"number": 1, "first_rank": 3, "workers": 1}]
    source.news = JobNews([agent(logs=str(tmp_path), attempts=attempts)], [], [])
    _, client = serve()
    with closing(client.events()) as events:
        events.next()
        lines = {"lines": ["one", "<script>"], "offset": 13, "skipped": 0}
        logs = {"attempt": 1, "streams": {"out": lines}}
        assert client.get("/logs?rank=3&out=0&err=0") == (200, logs)
        with (folder / "stdout.log").open("a") as file:
            file.write("two\n")
        found = client.get("/logs?rank=3&out=13&err=0&attempt=1")[1]["streams"]["out"]
        assert (found["lines"], found["offset"]) == (["two"], 17)
        # Of another attempt the offsets mean nothing.
        found = client.get("/logs?rank=3&out=13&err=0&attempt=0")[1]["streams"]["out"]
        assert found["lines"] == ["one", "<script>", "two"]
        nothing: dict[str, Any] = {"attempt": None, "streams": {}}
        assert client.get("/logs?rank=9&out=0&err=0") == (200, nothing)


def test_an_address_that_is_taken_is_an_error(serve: Serve, source: Source) -> None:
    _, client = serve()
    other = PageServer(client.address, source)
    with pytest.raises(UsageError, match=f"cannot listen on {client.address}"):
        other.start()
    other.close()


def test_beyond_loopback_it_says_that_nothing_is_encrypted(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    server = PageServer(Address("0.0.0.0", 0), source)
    link = server.start()
    server.close()
    assert socket.gethostname() in link
    assert "is not encrypted" in caplog.text
