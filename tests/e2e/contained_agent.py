"""An agent as small as can be, to be killed: it starts workers, says so, and waits.

    python contained_agent.py PHASE [no-cgroup] [no-reaper] [alone]

It says one line of JSON when it is in the phase, and every process of its workers says "up". All of
them hold its standard output, so that its end is the end of the last one.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import ExitStack

from holdfast.process.group import WorkerGroup
from holdfast.process.outcome.failure import Failure
from holdfast.process.output.logs import RunLogs, WorkerPlace
from holdfast.process.output.streams import LogOptions
from holdfast.process.spec import Exit, Launch, Program
from holdfast.process.start.spawn import Starter, WorkerProcess
from holdfast.process.stop.containment import Containment

WORKERS = 3
ALONE = "trap '' TERM; echo up; while :; do read never < $NEVER; done"
# A child, one in a session of its own, and a daemon, forked twice. Then a worker.
FAMILY = (
    "trap '' TERM;"
    "(echo up; exec sleep 1000) & "
    "setsid sh -c 'echo up; exec sleep 1000' & "
    "(setsid sh -c '(echo up; exec sleep 1000) & exit');" + ALONE.removeprefix("trap '' TERM;")
)
# And one that has lost the mark: only a control group holds it.
UNMARKED = "env -i setsid sh -c 'echo up; exec sleep 1000' & " + FAMILY


class Pausing(Starter):
    """Stays for ever in the start of the first worker."""

    def start(self, launch: Launch, stdout: int | None, stderr: int | None) -> WorkerProcess:
        super().start(launch, stdout, stderr)
        say(pids=[])
        while True:
            signal.pause()


def say(**more: object) -> None:
    os.write(1, f"{json.dumps({**facts, **more})}\n".encode())


def no_failure(launch: Launch, pid: int, exit_: Exit) -> Failure:
    raise NotImplementedError


def main(phase: str, *options: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with ExitStack() as stack:
        logs = RunLogs(LogOptions(), "contained")
        logs.open()
        stack.callback(logs.close)
        containment = Containment(
            logs.folder, reaper="no-reaper" not in options, cgroup="no-cgroup" not in options
        )
        stack.enter_context(containment)
        never = logs.folder / "never"
        os.mkfifo(never)
        script = UNMARKED if containment.procs_path else FAMILY
        script = ALONE if "alone" in options else script
        reaper = containment._reaper
        facts.update(
            processes=script.count("echo up"),
            reaper=reaper and reaper.pid,
            folder=str(logs.folder),
            cgroup=str(containment.procs_path.parent) if containment.procs_path else None,
            token=containment.environment["HOLDFAST_GROUP"],
        )
        attempt = logs.attempt(0, [WorkerPlace(rank, rank, "worker") for rank in range(WORKERS)])
        launches = [
            Launch(
                entrypoint=Program("/bin/sh", ("-c", script)),
                local_rank=rank,
                rank=rank,
                role="worker",
                environment={**os.environ, "NEVER": str(never)},
                folder=attempt.folder(rank),
            )
            for rank in range(WORKERS)
        ]
        kind = Pausing if phase == "start" else Starter
        starter = kind(cgroup=containment.procs_path)
        group = WorkerGroup(
            launches, attempt, starter, containment, lambda _: None, examine=no_failure
        )
        group.start()
        say(pids=list(group.pids().values()))
        if phase == "stop":
            os.read(0, 1)  # the test has heard all processes
            group.stop(signal.SIGTERM, 1000.0)
            os.write(1, b"stopping\n")
        while True:
            signal.pause()


facts: dict[str, object] = {}

if __name__ == "__main__":
    main(*sys.argv[1:])
