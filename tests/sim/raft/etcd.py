"""Members that are etcd's own raft, with the methods of the product's machine.

`oracle/main.go` runs them: a process that answers JSON lines, built from Debian's packages
golang-go and golang-etcd-server-dev. Here messages are translated, one to one, and a member's time
to stand for election is drawn from a seed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

from holdfast.store.raft.effects import (
    Became,
    Committed,
    RaftEffect,
    ReadReady,
    Restored,
    Role,
    SendMessage,
)
from holdfast.store.raft.messages import (
    AppendEntries,
    AppendReply,
    ChangeKind,
    Configuration,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    LogEntry,
    LogSnapshot,
    MemberChange,
    Message,
    PreVote,
    PreVoteReply,
    Proposal,
    ReadIndex,
    ReadIndexReply,
    TimeoutNow,
    TransferLeader,
    Vote,
    VoteReply,
)

__all__ = ["EtcdRaft", "Oracle", "build", "missing"]

SOURCE = Path(__file__).parent / "oracle" / "main.go"
GO_PATH = Path("/usr/share/gocode")
PACKAGES = "golang-go, golang-etcd-server-dev"
BUILD_WITHIN_S = 280.0
TRANSFER = "CampaignTransfer"


def missing() -> str | None:
    """Say what must be installed to run etcd's raft, or None if all is there."""
    there = shutil.which("go") and (GO_PATH / "src/go.etcd.io/etcd/raft").is_dir()
    return None if there else f"etcd's raft is not here: install Debian's {PACKAGES}"


def build(folder: Path) -> Path:
    """Build the oracle in a folder, and return its path."""
    binary = folder / "raft-oracle"
    own = {"GO111MODULE": "off", "GOPATH": str(GO_PATH), "GOCACHE": str(folder / "cache")}
    subprocess.run(
        ["go", "build", "-o", str(binary), str(SOURCE)],
        env=os.environ | own,
        check=True,
        timeout=BUILD_WITHIN_S,
    )
    return binary


class Oracle:
    """The process. Use it as a context."""

    def __init__(self, binary: Path) -> None:
        self._process = subprocess.Popen(
            [binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Let a member do something, and return what came of it."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"op": op} | fields) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer


class EtcdState:
    """What a member of etcd's raft shows."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.term = 0
        self.configuration = Configuration()
        self.applied = 0


class EtcdRaft:
    """A member that is etcd's; its methods do what those of the product's `Raft` do."""

    def __init__(
        self,
        oracle: Oracle,
        number: int,
        founders: Configuration | None,
        rng: random.Random,
        *,
        election_ticks: int,
        heartbeat_ticks: int,
    ) -> None:
        self.state = EtcdState(number)
        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self._oracle = oracle
        self._rng = rng
        self._election_ticks = election_ticks
        self._effects: list[RaftEffect] = []
        self._tail: list[LogEntry] = []
        self._patience = 0
        self._wait_anew()
        first = founders or Configuration()
        self._ask(
            "new",
            voters=first.voters,
            learners=first.learners,
            election=election_ticks,
            heartbeat=heartbeat_ticks,
        )
        self._effects.clear()

    def tick(self) -> None:
        voters = self.state.configuration.voters
        if self.role is Role.LEADER:
            self._ask("tick")
            if self.state.id not in voters and voters:
                # etcd's raft leaves it to its application to end a leader that was removed.
                self._ask("transfer", node=self._rng.choice(voters))
            return
        self._patience -= 1
        if self._patience > 0 or self.state.id not in voters:
            self._ask("wait")
        else:
            self.campaign()

    def step(self, message: Message) -> None:
        if isinstance(message, AppendEntries | Heartbeat | InstallSnapshot | Vote):
            self._wait_anew()
        self._ask("step", msg=to_etcd(message))

    def propose(self, data: bytes) -> str | None:
        return self._ask("propose", data=data.decode())

    def change(self, change: MemberChange) -> str | None:
        return self._ask("change", kind=change.kind, node=change.member)

    def read(self, context: bytes) -> str | None:
        return self._ask("read", data=context.decode())

    def transfer(self, to: int) -> str | None:
        return self._ask("transfer", node=to)

    def campaign(self) -> None:
        self._wait_anew()
        self._ask("campaign")

    def unreachable(self, member: int) -> None:
        self._ask("unreachable", node=member)

    def send_snapshot(self, member: int, data: bytes) -> None:
        raise AssertionError("etcd's raft makes its own snapshots")

    def drop_log(self, index: int) -> None:
        if index > 0:
            self._ask("drop", index=index)

    def tail(self) -> list[LogEntry]:
        return self._tail

    def take_effects(self) -> list[RaftEffect]:
        effects, self._effects = self._effects, []
        return effects

    def _wait_anew(self) -> None:
        self._patience = self._election_ticks + self._rng.randrange(self._election_ticks)

    def _ask(self, op: str, **fields: Any) -> str | None:
        answer = self._oracle.ask(op, id=self.state.id, **fields)
        if answer["restored"]:
            self._effects.append(Restored(from_snapshot(answer["restored"])))
        self._effects += [Committed(from_entry(each)) for each in answer["applied"] or ()]
        reads = answer["reads"] or ()
        self._effects += [ReadReady(r["index"], r["context"].encode()) for r in reads]
        role, leader = Role(answer["role"]), answer["lead"] or None
        if (role, answer["term"], leader) != (self.role, self.state.term, self.leader):
            self._effects.append(Became(role, answer["term"], leader, "etcd"))
        messages = answer["messages"] or ()
        self._effects += [SendMessage(from_etcd(each)) for each in messages]
        self.role, self.leader = role, leader
        self.state.term, self.state.applied = answer["term"], answer["index"]
        self.state.configuration = members_of(answer)
        self._tail = [from_entry(each) for each in answer["tail"] or ()]
        return answer["error"] or None


# Messages, one to one.


def members_of(fields: dict[str, Any]) -> Configuration:
    voters, learners = fields["voters"] or (), fields["learners"] or ()
    return Configuration(tuple(sorted(voters)), tuple(sorted(learners)))


def from_snapshot(fields: dict[str, Any]) -> LogSnapshot:
    data = fields["data"].encode()
    return LogSnapshot(fields["index"], fields["term"], members_of(fields), data)


def from_entry(fields: dict[str, Any]) -> LogEntry:
    change = None
    if fields["change"]:
        kind, _, member = fields["change"].partition(" ")
        change = MemberChange(ChangeKind(kind), int(member))
    return LogEntry(fields["term"], fields["index"], fields["data"].encode(), change)


def to_entry(entry: LogEntry) -> dict[str, Any]:
    change = "" if entry.change is None else str(entry.change)
    data = entry.data.decode()
    return {"term": entry.term, "index": entry.index, "data": data, "change": change}


def from_etcd(m: dict[str, Any]) -> Message:
    """Return etcd's message as one of ours."""
    ends = (m["to"], m["from"])
    head = (*ends, m["term"])
    entries = tuple(map(from_entry, m["entries"] or ()))
    context = m["context"].encode()
    match m["type"]:
        case "MsgPreVote":
            return PreVote(*head, m["index"], m["logTerm"])
        case "MsgPreVoteResp":
            return PreVoteReply(*head, m["reject"])
        case "MsgVote":
            return Vote(*head, m["index"], m["logTerm"], m["context"] == TRANSFER)
        case "MsgVoteResp":
            return VoteReply(*head, m["reject"])
        case "MsgApp":
            return AppendEntries(*head, m["index"], m["logTerm"], entries, m["commit"])
        case "MsgAppResp":
            return AppendReply(*head, m["index"], m["reject"], m["hint"])
        case "MsgHeartbeat":
            return Heartbeat(*head, m["commit"], context)
        case "MsgHeartbeatResp":
            return HeartbeatReply(*head, context)
        case "MsgSnap":
            return InstallSnapshot(*head, from_snapshot(m["snapshot"]))
        case "MsgTransferLeader":
            return TransferLeader(*head)
        case "MsgTimeoutNow":
            return TimeoutNow(*head)
        case "MsgProp":
            return Proposal(*ends, entries)
        case "MsgReadIndex":
            return ReadIndex(*ends, entries[0].data)
        case "MsgReadIndexResp":
            return ReadIndexReply(*head, m["index"], entries[0].data)
        case other:
            raise AssertionError(f"etcd's raft sends {other}")


def to_etcd(message: Message) -> dict[str, Any]:
    """Return one of our messages as etcd's."""
    fields: dict[str, Any] = {"to": message.to, "from": message.sender}
    if not isinstance(message, Proposal | ReadIndex):
        fields["term"] = message.term
    match message:
        case PreVote(index=index, log_term=log_term):
            return fields | {"type": "MsgPreVote", "index": index, "logTerm": log_term}
        case Vote(index=index, log_term=log_term, transfer=transfer):
            context = TRANSFER if transfer else ""
            last = {"index": index, "logTerm": log_term}
            return fields | last | {"type": "MsgVote", "context": context}
        case PreVoteReply(reject=reject):
            return fields | {"type": "MsgPreVoteResp", "reject": reject}
        case VoteReply(reject=reject):
            return fields | {"type": "MsgVoteResp", "reject": reject}
        case AppendEntries(index=index, log_term=log_term, entries=entries, commit=commit):
            sent = [to_entry(each) for each in entries]
            last = {"index": index, "logTerm": log_term}
            return fields | last | {"type": "MsgApp", "entries": sent, "commit": commit}
        case AppendReply(index=index, reject=reject, hint=hint):
            return fields | {"type": "MsgAppResp", "index": index, "reject": reject, "hint": hint}
        case Heartbeat(commit=commit, context=data):
            return fields | {"type": "MsgHeartbeat", "commit": commit, "context": data.decode()}
        case HeartbeatReply(context=data):
            return fields | {"type": "MsgHeartbeatResp", "context": data.decode()}
        case InstallSnapshot(snapshot=snapshot):
            members = snapshot.configuration
            shown = {"index": snapshot.index, "term": snapshot.term, "voters": members.voters}
            shown |= {"learners": members.learners, "data": snapshot.data.decode()}
            return fields | {"type": "MsgSnap", "snapshot": shown}
        case TransferLeader():
            return fields | {"type": "MsgTransferLeader"}
        case TimeoutNow():
            return fields | {"type": "MsgTimeoutNow"}
        case Proposal(entries=entries):
            return fields | {"type": "MsgProp", "entries": [to_entry(each) for each in entries]}
        case ReadIndex(context=data):
            asked = [to_entry(LogEntry(data=data))]
            return fields | {"type": "MsgReadIndex", "entries": asked}
        case ReadIndexReply(index=index, context=data):
            asked = [to_entry(LogEntry(data=data))]
            return fields | {"type": "MsgReadIndexResp", "index": index, "entries": asked}
