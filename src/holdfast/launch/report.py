"""What went wrong, as text, as JSON and as an exit code.

The text is for people: the first cause first and whole, then a line for each failure that came
after it. The JSON is for programs; its fields are

    name        the entry point
    run         the run's id
    reason      why the job ended, in a sentence
    exit_code   what the command exits with
    failures    a list, the first cause first, of
        rank, local_rank, role, host, pid   which worker
        exit_code                           its own code; minus the signal's number if one killed it
        exit                                the same in words
        time                                when, as in 2026-01-31T12:00:00.123Z
        timestamp                           when, in seconds since 1970
        after_s                             how long after the first cause
        message, type, traceback            what it raised, if it did
        stack                               the Python stack at a crash or before a KILL
        hint                                what else is known
        error_file                          where the worker left it
        kind                                oom or stall, if it is one
        step                                the last step that the worker told; -1: none
        repeated                            how often it came in a row, if that ended the job
    machines    the last steps of the machines that decided here, for `holdfast replay`
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from textwrap import indent
from typing import Any

from holdfast.agent.outcome import gist
from holdfast.errors import WorkersFailed
from holdfast.process.outcome.failure import Failure, clip, lost_a_peer

__all__ = ["as_json", "as_text", "dump", "workers_failed"]

_TRACEBACK_CHARS = 8 * 1024
_LINE_CHARS = 160
_OTHERS = 32
_NOT_SURE = (
    "The first one says that it lost a peer, so one of the others may have failed before it:"
    " clocks of hosts differ."
)


def workers_failed(
    name: str, run_id: str, failures: Sequence[Failure], reason: str = ""
) -> WorkersFailed:
    """Make the error for failed workers, whose message is the report. The first cause is first."""
    text = as_text(name, run_id, failures, reason)
    return WorkersFailed(text, name=name, failures=tuple(failures))


def as_text(name: str, run_id: str, failures: Sequence[Failure], reason: str = "") -> str:
    """Return the report for people; `failures` have the first cause first, `reason` says the end.

    A job can fail without one: another node's workers did, and did not tell how.
    """
    lines = [f"{name} failed (run {run_id}){f': {_first_line(reason)}' if reason else ''}"]
    if not failures:
        return lines[0]
    first, others = failures[0], failures[1:]
    lines += ["", "First cause:", indent(_whole(first), "  ")]
    if others:
        lines += ["", "After it:"]
        lines += [f"  {_line(failure, first)}" for failure in others[:_OTHERS]]
    if len(others) > _OTHERS:
        lines.append(f"  and {len(others) - _OTHERS} more")
    if others and lost_a_peer(first):
        lines += ["", _NOT_SURE]
    return "\n".join(lines)


def as_json(
    name: str,
    run_id: str,
    failures: Sequence[Failure],
    reason: str,
    exit_code: int,
    machines: Sequence[dict[str, object]] = (),
) -> dict[str, Any]:
    """Return the report for programs; the fields are listed above."""
    return {
        "name": name,
        "run": run_id,
        "reason": reason,
        "exit_code": exit_code,
        "failures": [_fields(failure, failures[0]) for failure in failures],
        "machines": list(machines),
    }


def dump(report: dict[str, Any]) -> str:
    """Return a report as text: indented, but for its machines, which have a line each."""
    rest = json.dumps({key: value for key, value in report.items() if key != "machines"}, indent=2)
    machines = ",".join(f"\n    {json.dumps(machine)}" for machine in report["machines"])
    return f'{rest[:-2]},\n  "machines": [{machines}\n  ]\n}}\n'


def _whole(failure: Failure) -> str:
    facts = {
        "worker": f"rank {failure.rank} (local rank {failure.local_rank}{_role(failure)})",
        "host": f"{failure.host}, pid {failure.pid}",
        "time": _time(failure.at),
        "end": str(failure.exit),
        "step": str(failure.step) if failure.step >= 0 else "",
        "hint": failure.hint,
        "error file": failure.error_file,
    }
    lines = [f"{title + ':':<12}{fact}" for title, fact in facts.items() if fact]
    said = failure.traceback.strip("\n") or failure.message
    if said != str(failure.exit):
        lines += ["", clip(said, _TRACEBACK_CHARS)]
    if failure.traceback and not _tells(failure.traceback, failure.message):
        lines += [clip(failure.message, _TRACEBACK_CHARS)]
    if failure.stack:
        lines += [
            "",
            "Python stack at its end:",
            clip(failure.stack.strip("\n"), _TRACEBACK_CHARS),
        ]
    return "\n".join(lines)


def _tells(traceback: str, message: str) -> bool:
    """Say whether a traceback has the message, or ends with it but for a place in parentheses.

    Those are a SyntaxError's, whose traceback begins with the place.
    """
    last = traceback.rstrip("\n").rpartition("\n")[2]
    # Python leaves out the colon after the name of an exception without a text.
    return message.rstrip(": ") in traceback or message.startswith(f"{last} (")


def _line(failure: Failure, first: Failure) -> str:
    """Return one line on a failure that came later."""
    known = gist(failure)
    what = f": {_first_line(known)}" if known else ""
    because = " (it lost a peer)" if lost_a_peer(failure) else ""
    later_s = max(0.0, failure.when - first.when)  # the first may have been noticed after it
    return (
        f"{later_s:+.3f} s  rank {failure.rank} on {failure.host},"
        f" pid {failure.pid}: {failure.exit}{what}{because}"
    )


def _fields(failure: Failure, first: Failure) -> dict[str, Any]:
    return {
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "role": failure.role,
        "host": failure.host,
        "pid": failure.pid,
        "exit_code": failure.exit.code,
        "exit": str(failure.exit),
        "time": _time(failure.at),
        "timestamp": failure.at,
        "after_s": max(0.0, failure.when - first.when),
        "message": failure.message,
        "type": failure.error_type,
        "traceback": failure.traceback,
        "stack": failure.stack,
        "hint": failure.hint,
        "error_file": failure.error_file,
        "kind": failure.kind,
        "step": failure.step,
        "repeated": failure.repeated,
    }


def _role(failure: Failure) -> str:
    return f", role {failure.role}" if failure.role not in ("", "default") else ""


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LINE_CHARS else f"{line[: _LINE_CHARS - 1]}…"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
