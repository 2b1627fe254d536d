"""An agent of a job as a process of its own; what happens to it goes to stdout, as lines of JSON.

The argument is a JSON object: `config` has the fields of LaunchConfig, `function` names one of
`entrypoints.py`, or else `command` is one, and `args` are its arguments. `output` is a file for
what the workers print. In the state that `break_in` names the agent is hit by an unexpected
error. The last but one report says how the job ended, the last what was left behind.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from holdfast.agent.status import AgentStatus
from holdfast.errors import HoldfastError, Signalled, WorkersFailed
from holdfast.launch.config import LaunchConfig
from holdfast.launch.entrypoints import make_entrypoint
from holdfast.launch.launcher import run_job
from holdfast.observe.events import Event
from holdfast.process.output.streams import LogOptions, Std
from holdfast.rendezvous import session
from holdfast.testing.leaks import find_leaks, take_snapshot
from tests.e2e import entrypoints


class Unexpected(Exception):
    """What no part of the agent knows."""


class Reporter:
    """A sink that reports every event."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def report(self, event: str, **fields: object) -> None:
        """Write one line; a short write to a pipe is never torn."""
        os.write(self._fd, json.dumps({"event": event, **fields}).encode() + b"\n")

    def emit(self, event: Event) -> None:
        fields = event.to_dict()
        self.report(str(fields.pop("event")), **fields)

    def close(self) -> None:
        pass


def turn_streams(output: str | None) -> int:
    """Let workers print elsewhere, and return the descriptor that reports go to."""
    fd = os.dup(1)
    target = 2 if output is None else os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(target, 1)
    if output is not None:
        os.close(target)
    return fd


def launch_config(wish: dict[str, Any]) -> LaunchConfig:
    """Read the configuration; of the logs only the folder, the prefix and that all is shown."""
    if "logs" in wish:
        folder, prefix = wish.pop("logs")
        wish["logs"] = LogOptions(log_dir=Path(folder), tee=Std.ALL, prefix=prefix)
    return LaunchConfig(**wish)


def run(wish: dict[str, Any], reporter: Reporter) -> int:
    """Do this node's part of the job; return the exit code."""
    config = launch_config(wish["config"])
    name = wish.get("function")
    what = getattr(entrypoints, name) if name else wish["command"]
    entrypoint = make_entrypoint(what, wish["args"], config.start_method)

    def show(status: AgentStatus) -> None:
        reporter.report("state", state=status.state.value)
        if status.state.value == wish.get("break_in"):
            raise Unexpected(status.state.value)

    try:
        results = run_job(config, entrypoint, show=show, sink=reporter)
    except WorkersFailed as error:
        failures = [[one.rank, one.exit.shell_code, one.message] for one in error.failures]
        reporter.report("raised", error="WorkersFailed", text=str(error), failures=failures)
        return error.exit_code
    except Signalled as error:
        reporter.report("raised", error="Signalled", text=str(error))
        return error.exit_code
    except (HoldfastError, Unexpected) as error:
        reporter.report("raised", error=type(error).__name__, text=str(error))
        return 1
    reporter.report("returned", results=results)
    return 0


def main() -> None:
    """Be a node."""
    wish = json.loads(sys.argv[1])
    reporter = Reporter(turn_streams(wish.get("output")))
    vars(session)["LogSink"] = lambda: reporter  # what happens to the run is told too
    before = take_snapshot()
    reporter.report("started", pid=os.getpid())
    code = run(wish, reporter)
    leaks = [f"{leak.kind}: {leak.what}" for leak in find_leaks(before)]
    reporter.report("left", clean=True, leaks=leaks)
    sys.exit(code)
