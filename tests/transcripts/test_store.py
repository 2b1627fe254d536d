"""The main stories of the store's machines, told in tests/transcripts/store/*.txt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, UsageError
from holdfast.ids import LeaseId, SessionId
from holdfast.store import ops
from holdfast.store.effects import Hangup, SendFrame
from holdfast.store.keyspace import Keyspace
from holdfast.store.messages import (
    Call,
    CallFailure,
    Changed,
    FromClient,
    FromServer,
    Hello,
    Reply,
    WatchSnapshot,
    Welcome,
    decode_from_client,
    decode_from_server,
)
from holdfast.store.service import Service
from holdfast.store.session import PendingCall, Session, WatchState
from holdfast.store.wire import decode_result
from holdfast.testing.transcript import Command

STORIES = sorted((Path(__file__).parent / "store").glob("*.txt"))


# Operations and results as a story writes them.


def parse_op(words: tuple[str, ...], options: dict[str, str]) -> ops.AnyOp:
    lease = LeaseId(int(options["lease"])) if "lease" in options else None
    match words:
        case "get", key:
            return ops.Get(key)
        case "set", key, value:
            return ops.Set(key, value.encode(), lease)
        case "add", key, amount:
            return ops.Add(key, int(amount))
        case "compare_set", key, expected, desired:
            return ops.CompareSet(key, maybe(expected), maybe(desired), lease)
        case "delete", key:
            return ops.Delete(key)
        case "append", key, value:
            return ops.Append(key, value.encode())
        case "multi_get", *keys:
            return ops.MultiGet(tuple(keys))
        case "multi_set", *pairs:
            values = dict(zip(pairs[::2], pairs[1::2], strict=True))
            return ops.MultiSet(tuple((k, v.encode()) for k, v in values.items()), lease)
        case "wait", *keys:
            return ops.Wait(tuple(keys))
        case "count", prefix:
            return ops.Count(prefix)
        case "list", prefix:
            return ops.ListPrefix(prefix)
        case "grant", ttl:
            return ops.LeaseGrant(float(ttl))
        case "keep", number:
            return ops.LeaseKeep(LeaseId(int(number)))
        case "revoke", number:
            return ops.LeaseRevoke(LeaseId(int(number)))
        case _:
            raise UsageError(f"no such operation: {' '.join(words)}")


def maybe(word: str) -> bytes | None:
    return None if word == "-" else word.encode()


def show(result: object) -> str:
    match result:
        case None:
            return "-"
        case bytes():
            return result.decode()
        case ops.Entry(key, value, revision) | ops.Change(key, value, revision):
            return f"{key}={show(value)} @{revision}"
        case ops.Swap(ok, value, revision):
            return f"{'won' if ok else 'lost'}: {show(value)} @{revision}"
        case ops.Lease(number, ttl):
            return f"lease {number} for {ttl:g} s"
        case tuple():
            return ", ".join(map(show, result)) or "nothing"
        case _:
            return str(result)


class KeyspaceStory:
    """Commands are operations on one keyspace; `advance` moves the clock."""

    def __init__(self) -> None:
        self._keyspace = Keyspace()
        self._now = 0.0

    def __call__(self, command: Command) -> str:
        if command.name == "advance":
            self._now += float(command.args[0])
            self._keyspace.expire(self._now)
            return self._changes("")
        op = parse_op((command.name, *command.args), command.options)
        if isinstance(op, ops.Wait):
            entries = self._keyspace.ready(op.keys)
            missing = self._keyspace.missing(op.keys)
            return show(entries) if entries is not None else f"missing: {', '.join(missing)}"
        return self._changes(show(self._keyspace.apply(op, self._now)))

    def _changes(self, result: str) -> str:
        changes = [f"  change {show(change)}" for change in self._keyspace.take_changes()]
        return "\n".join([result] * bool(result) + changes)


class SessionStory:
    """A server and its clients; messages travel when the story says `deliver`.

    connect C, cut C            make a connection; lose it, on both sides
    call C OP...                begin a call           give-up C        give up its oldest call
    watch C KEY [prefix=yes]    open a watch           read C           read what it has
    deliver                     let messages arrive until none is left
    deliver to-server           let those arrive that are on their way to the server
    lose C to-server|to-client  lose what is under way
    congest C, relieve C        C's connection is full; is empty again
    advance S, restart          let time pass; start a new server, without its keys
    """

    def __init__(self) -> None:
        self._service = Service(incarnation=1)
        self._now = 0.0
        self._sessions: dict[str, Session] = {}
        self._connections: dict[str, int] = {}
        self._next_connection = 1
        self._to_server: dict[str, list[bytes]] = {}
        self._to_client: dict[str, list[bytes]] = {}
        self._calls: dict[str, list[PendingCall[object]]] = {}
        self._ops: dict[tuple[str, int], ops.AnyOp] = {}
        self._watches: dict[str, WatchState] = {}

    def __call__(self, command: Command) -> str:
        args = command.args
        match command.name:
            case "connect":
                self._connect(args[0])
            case "cut":
                self._cut(args[0])
            case "call":
                return self._call(args[0], parse_op(args[1:], command.options))
            case "give-up":
                call = self._calls[args[0]].pop(0)
                happened = self._sessions[args[0]].abandon(call)
                return f"call {call.number} may have happened: {happened}"
            case "watch":
                prefix = command.options.get("prefix") == "yes"
                self._watches[args[0]] = self._sessions[args[0]].open_watch(args[1], prefix)
            case "read":
                return self._read(args[0])
            case "deliver" if args:
                self._collect()
                return "\n".join(self._deliver_to_server())
            case "deliver":
                return self._deliver()
            case "lose":
                queue = self._to_server if args[1] == "to-server" else self._to_client
                self._collect()
                return f"{len(self._take(queue[args[0]]))} lost"
            case "congest":
                self._service.congest(self._connections[args[0]])
            case "relieve":
                self._service.relieve(self._connections[args[0]])
            case "advance":
                self._now += float(args[0])
                self._service.tick(self._now)
            case "restart":
                for client in list(self._connections):
                    self._cut(client)
                self._service = Service(self._service.incarnation + 1)
            case _:
                raise UsageError(f"no such command: {command.name}")
        return ""

    def _connect(self, client: str) -> None:
        number = len(self._sessions) + 1
        session = self._sessions.setdefault(client, Session(SessionId(number), "tcp://store"))
        self._connections[client] = self._next_connection
        self._next_connection += 1
        self._to_server[client], self._to_client[client] = [], []
        self._service.connect(self._connections[client])
        session.connected(self._now)

    def _cut(self, client: str) -> None:
        self._collect()
        self._service.disconnect(self._connections.pop(client), self._now)
        self._sessions[client].disconnected()

    def _call(self, client: str, op: ops.AnyOp) -> str:
        call: PendingCall[object] = self._sessions[client].begin(op)
        self._ops[client, call.number] = op
        self._calls.setdefault(client, []).append(call)
        return "\n".join(self._settled())

    def _read(self, client: str) -> str:
        lines = []
        while (change := self._watches[client].pending.take()) is not None:
            lines.append(show(change))
        return "\n".join(lines) or "nothing"

    def _collect(self) -> None:
        """Put what machines want to send on its way."""
        for client, session in self._sessions.items():
            if client in self._connections:
                self._to_server[client] += session.take_output()
        names = {number: client for client, number in self._connections.items()}
        for effect in self._service.take_effects():
            match effect:
                case SendFrame(connection, payload):
                    self._to_client[names[connection]].append(payload)
                case Hangup():
                    pass

    def _deliver(self) -> str:
        lines: list[str] = []
        while True:
            self._collect()
            moved = self._deliver_to_server() + self._deliver_to_clients()
            lines += moved + self._settled()
            if not moved:
                return "\n".join(lines)

    def _deliver_to_server(self) -> list[str]:
        lines = []
        for client, connection in self._connections.items():
            for payload in self._take(self._to_server[client]):
                lines.append(f"{client} -> {self._describe(client, decode_from_client(payload))}")
                self._service.receive(connection, payload, self._now)
        return lines

    def _deliver_to_clients(self) -> list[str]:
        lines = []
        for client in self._connections:
            for payload in self._take(self._to_client[client]):
                lines.append(f"{client} <- {self._describe(client, decode_from_server(payload))}")
                self._sessions[client].receive(payload, self._now)
        return lines

    def _take(self, queue: list[bytes]) -> list[bytes]:
        taken = list(queue)
        queue.clear()
        return taken

    def _settled(self) -> list[str]:
        lines = []
        for client, calls in self._calls.items():
            for call in [call for call in calls if call.done]:
                calls.remove(call)
                try:
                    outcome = show(call.outcome())
                except HoldfastError as error:
                    happened = getattr(error, "maybe_applied", False)
                    outcome = (
                        f"{type(error).__name__}: {error}" + " (it may have happened)" * happened
                    )
                lines.append(f"{client}: call {call.number} ends: {outcome}")
        return lines

    def _describe(self, client: str, message: FromClient | FromServer) -> str:
        match message:
            case Hello(_, incarnation, floor):
                return f"Hello: knows server {incarnation}, settled below {floor}"
            case Call(number, ack, op):
                return f"Call {number} (settled below {ack}): {op}"
            case Welcome(incarnation, resumed):
                return f"Welcome: server {incarnation}, resumed: {resumed}"
            case Reply(number, result):
                return f"Reply {number}: {show(decode_result(self._ops[client, number], result))}"
            case CallFailure(number, why, text):
                return f"Failure {number}: {why.name} {text}".rstrip()
            case WatchSnapshot(watch, _, revision, entries):
                return f"Snapshot of watch {watch} at {revision}: {show(entries)}"
            case Changed(watch, change):
                return f"Changed under watch {watch}: {show(change)}"
            case _:
                return str(message)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, transcript: Callable[[Path, Callable[[Command], str]], None]) -> None:
    story = KeyspaceStory() if path.stem in {"keyspace", "lease"} else SessionStory()
    transcript(path, story)


def test_the_main_stories_are_there() -> None:
    names = {path.stem for path in STORIES}
    assert names >= {"keyspace", "lease", "reconnect", "restart", "slow-watch", "wait", "watch"}
