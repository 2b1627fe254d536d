"""Answers a browser that shows the page of a job, and sends it what changes.

    GET /?token=…   the page; it sets the cookie
    GET /events     the state of the job, then what changes, as server-sent events
    GET /stacks     where workers are, equal stacks merged; ?rank=3 for one
    GET /logs       the end of a worker's output, and what it wrote since: ?rank=3&out=0&err=0

Guarantees
    PW-1  Nothing can be changed here. What blocks runs on threads of its own, at most TASKS_MAX,
          so that no request delays another one.
    PW-2  Only while a browser shows the page are the agents asked.
    PW-3  `close` sends the last state, and ends every connection and thread.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
from collections.abc import Callable
from importlib import resources
from typing import Any

from holdfast.control.log_files import log_files
from holdfast.control.merged_stacks import merge_stacks
from holdfast.control.ranks import name_ranks
from holdfast.errors import HoldfastError
from holdfast.ids import new_token
from holdfast.net.address import Address, is_loopback
from holdfast.net.http_messages import HTML, JSON, ServedReply, ServedRequest, refusal
from holdfast.net.http_server import HttpExchange, HttpServer
from holdfast.page.guard import PageForbidden, PageGuard, page_headers
from holdfast.page.log_window import read_window
from holdfast.page.source import JobNews, JobSource
from holdfast.page.view import changes, page_state, sse
from holdfast.threads import start_thread

__all__ = ["REFRESH_S", "PageServer"]

REFRESH_S = 0.5
STREAMS_MAX = 16
TASKS_MAX = 8
CLOSE_WITHIN_S = 5.0
_TOKEN_LENGTH = 32
_OFFSET_MAX = 2**53
_EVERYWHERE = ("0.0.0.0", "::")

_log = logging.getLogger("holdfast.page")


class PageServer:
    """Serves the page from `start` until `close`; `ended` is set when the job has ended."""

    def __init__(
        self, where: Address, source: JobSource, *, always: bool = False, every_s: float = REFRESH_S
    ) -> None:
        self._where = where
        self._source = source
        self._every_s = every_s
        self._always = always
        self._html = resources.files("holdfast.page").joinpath("page.html").read_text("utf-8")
        self._headers = page_headers(self._html)
        rng = random.SystemRandom()
        names = {"localhost", os.uname().nodename.lower(), where.host.lower()}
        self._guard = PageGuard(new_token(rng, _TOKEN_LENGTH), new_token(rng, 8), frozenset(names))
        self._server: HttpServer | None = None
        self._refresher: threading.Thread | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._news: JobNews | None = None
        self.ended = threading.Event()
        # Touched by the reactor's thread only.
        self._state: dict[str, Any] | None = None
        self._streams: dict[HttpExchange, bool] = {}
        self._tasks = 0

    def start(self) -> str:
        """Begin to answer; return the link. UsageError if the address cannot be bound."""
        server = HttpServer("holdfast-page-http", self._answer, streams_max=STREAMS_MAX)
        try:
            bound = server.listen(self._where)
            server.start()
            self._server = server
            self._refresher = threading.Thread(
                target=self._refresh, name="holdfast-page", daemon=True
            )
            start_thread(self._refresher)
        except BaseException:
            self._refresher = None
            server.close()
            raise
        host = os.uname().nodename if bound.host in _EVERYWHERE else bound.host
        if not is_loopback(bound.host):
            _log.warning("the page at %s is not encrypted: others may read along", bound)
        return f"http://{Address(host, bound.port)}/?token={self._guard.token}"

    def close(self) -> None:
        """Send the last state, and stop (PW-3). Idempotent."""
        server, refresher = self._server, self._refresher
        if server is None or refresher is None or self._closing.is_set():
            return
        self._closing.set()
        self._wake.set()
        refresher.join(CLOSE_WITHIN_S)
        server.close()

    # On the refresher's thread.

    def _refresh(self) -> None:
        server = self._server
        while server is not None and not self._closing.is_set():
            if self._always or self._streams:
                self._look(server)
                self._closing.wait(self._every_s)
            else:  # PW-2
                self._wake.wait()
                self._wake.clear()
        told = threading.Event()
        if server is not None:
            self._look(server)
            server.reactor.call_soon(lambda: self._say_goodbye(told))
            told.wait(CLOSE_WITHIN_S)

    def _look(self, server: HttpServer) -> None:
        """Ask the agents, and let the reactor tell what is new."""
        try:
            news = self._source.poll()
        except HoldfastError as error:
            _log.info("the page cannot ask the agents: %s", error)
            return
        if news is None:
            self.ended.set()
        elif news.agents:
            self._news = news
            state = page_state(*news)
            server.reactor.call_soon(lambda: self._tell(state))
        elif self._news is not None:  # none of them answers
            state = page_state(self._news.agents, news.missing, self._news.events)
            server.reactor.call_soon(lambda: self._tell(state))

    # On the reactor's thread.

    def _tell(self, state: dict[str, Any]) -> None:
        new = changes(self._state, state) if self._state is not None else state
        self._state = state
        for stream, has_state in list(self._streams.items()):
            if not has_state:
                self._streams[stream] = True
                stream.send(sse("state", json.dumps(state)))
            elif new:
                stream.send(sse("change", json.dumps(new)))

    def _say_goodbye(self, told: threading.Event) -> None:
        for stream in list(self._streams):
            stream.send(sse("end", "{}"))
        told.set()

    def _answer(self, exchange: HttpExchange) -> None:
        request = exchange.request
        try:
            more = self._guard.admit(request)
            match request.path:
                case "/":
                    reply = ServedReply(self._html, HTML, 200, (*self._headers, *more))
                    exchange.reply(reply)
                case "/events":
                    self._stream(exchange)
                case "/stacks":
                    ranks = None if "rank" not in request.query else (_number(request, "rank"),)
                    self._in_background(exchange, lambda: self._stacks(ranks))
                case "/logs":
                    rank, out, err = (_number(request, name) for name in ("rank", "out", "err"))
                    attempt = _number(request, "attempt") if "attempt" in request.query else None
                    self._in_background(exchange, lambda: self._logs(rank, attempt, out, err))
                case _:
                    raise PageForbidden(404, "there is no such page")
        except PageForbidden as error:
            exchange.reply(self._sealed(refusal(error.status, str(error))))

    def _sealed(self, reply: ServedReply) -> ServedReply:
        return ServedReply(reply.content, reply.kind, reply.status, self._headers)

    def _stream(self, exchange: HttpExchange) -> None:
        if not exchange.stream(("Content-Type", "text/event-stream"), *self._headers):
            return

        def forget() -> None:
            self._streams.pop(exchange, None)

        exchange.on_closed = forget
        self._streams[exchange] = self._state is not None
        if self._state is not None:
            exchange.send(sse("state", json.dumps(self._state)))
        self._wake.set()

    def _in_background(self, exchange: HttpExchange, work: Callable[[], dict[str, Any]]) -> None:
        """Answer with what `work` returns, which may block (PW-1)."""
        server = self._server
        if self._tasks >= TASKS_MAX or server is None:
            exchange.reply(self._sealed(refusal(503, "too many requests are under way")))
            return

        def finish(reply: ServedReply) -> None:
            self._tasks -= 1
            exchange.reply(self._sealed(reply))

        def run() -> None:
            try:
                reply = ServedReply(json.dumps(work()), JSON)
            except HoldfastError as error:
                reply = refusal(503, str(error))
            except Exception:  # one request must not harm the others
                _log.exception("a request of the page could not be answered")
                reply = refusal(503)
            server.reactor.call_soon(lambda: finish(reply))

        self._tasks += 1
        try:
            start_thread(threading.Thread(target=run, name="holdfast-page-task", daemon=True))
        except HoldfastError as error:
            finish(refusal(503, str(error)))

    # On threads of their own.

    def _stacks(self, ranks: tuple[int, ...] | None) -> dict[str, Any]:
        stacks, missing = self._source.stacks(ranks)
        classes = [
            {"ranks": name_ranks(one.ranks), "summary": one.summary, "lines": one.lines}
            for one in merge_stacks(stacks)
        ]
        return {"classes": classes, "missing": missing}

    def _logs(self, rank: int, attempt: int | None, out: int, err: int) -> dict[str, Any]:
        """Return what a worker wrote since the offsets, which are those of the attempt."""
        agents = self._news.agents if self._news is not None else []
        found: dict[str, Any] = {"attempt": None, "streams": {}}
        for file in log_files(agents, None, (rank,)):
            found["attempt"] = file.attempt
            offset = {"": out, "err": err}[file.stream] if file.attempt == attempt else 0
            window = read_window(file.path, offset)
            if window is not None:
                found["streams"][file.stream or "out"] = {
                    "lines": window.lines,
                    "offset": window.offset,
                    "skipped": window.skipped,
                }
        return found


def _number(request: ServedRequest, name: str) -> int:
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 17 and int(text) < _OFFSET_MAX):
        raise PageForbidden(400, f"{name} must be 0, 1, 2 ...")
    return int(text)
