"""An agent to be killed: it says on standard output what happens to it, as lines of JSON.

    python -m tests.chaos.agent WISH

The wish is a JSON object: `config` has the fields of LaunchConfig, `args` are those of the workers
(`worker.py`). In the phase that `phase` names the agent stops where it is until it can read a
byte on standard input; `hold` stops it before it does anything. On SIGUSR1 it writes the stacks of
its threads to standard error.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from holdfast.agent.exchange import meet_at_exit
from holdfast.agent.status import AgentStatus
from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, Signalled, WorkersFailed
from holdfast.launch import launcher
from holdfast.launch.config import LaunchConfig
from holdfast.observe.events import Event
from holdfast.process.spec import Launch, Script
from holdfast.process.start.spawn import Starter, WorkerProcess
from holdfast.rendezvous import session
from holdfast.rendezvous.handler import Rendezvous, Round
from holdfast.rendezvous.parameters import RendezvousParameters
from holdfast.rendezvous.registry import create_rendezvous
from holdfast.store import client
from holdfast.testing.leaks import find_leaks, take_snapshot
from tests.chaos import worker
from tests.chaos.plan import Phase
from tests.inherited_signals import restore_signals

__all__ = ["Stage", "main", "show_stacks_at"]

_EVENTS = {
    "RoundFormed": Phase.FORMED,
    "WorkersStarted": Phase.STARTED,
    "WorkerFailed": Phase.FAILED,
    "WorkersRestarting": Phase.RESTARTING,
    "WorkersFinished": Phase.FINISHED,
}
_STATES = {"joining": Phase.WAITING, "stopping": Phase.STOPPING}


class Stage:
    """Where the agent plays: it reports everything, and stops in one phase, once. A sink."""

    def __init__(self, phase: Phase | None, reports: int, releases: int) -> None:
        self._phase = phase
        self._has_met = False
        self._reports = reports
        self._releases = releases

    def report(self, event: str, **fields: object) -> None:
        """Write one line; a short write to a pipe is never torn."""
        os.write(self._reports, json.dumps({"event": event, **fields}).encode() + b"\n")

    def reach(self, phase: Phase | None) -> None:
        """Stop here if this is the phase, until a byte or the end of input comes."""
        if phase is not None and phase is self._phase:
            self._phase = None
            self.hold(phase.value)

    def hold(self, where: str) -> None:
        """Say where we are, and stop."""
        self.report("phase", phase=where)
        os.read(self._releases, 1)

    def emit(self, event: Event) -> None:
        """Report an event of the product's."""
        fields = event.to_dict()
        name = str(fields.pop("event"))
        self.report(name, **fields)
        self.reach(_EVENTS.get(name))

    def close(self) -> None:
        """Nothing is kept."""

    def show(self, status: AgentStatus) -> None:
        """Report what the agent does now."""
        if self._has_met:  # before that it looks where the others are, and joins nothing yet
            self.report("state", state=status.state.value, reason=status.reason)
            self.reach(_STATES.get(status.state.value))

    def barrier(self, here: Round, stopped: Any, deadline: Deadline) -> None:
        """Be the exit barrier."""
        self.reach(Phase.BARRIER)
        meet_at_exit(here, stopped, deadline)

    def install(self) -> None:
        """Take the places of the parts that tell of no phase themselves."""
        stage = self
        create = create_rendezvous

        class StagedStarter(Starter):
            """Stops between two workers."""

            def start(
                self, launch: Launch, stdout: int | None, stderr: int | None
            ) -> WorkerProcess:
                process = super().start(launch, stdout, stderr)
                stage.reach(Phase.STARTING)
                return process

        def staged_create(parameters: RendezvousParameters) -> Rendezvous:
            stage.reach(Phase.CREATING)
            rendezvous = create(parameters)
            stage._has_met = True
            host = getattr(rendezvous, "_host", None)
            if host is not None:
                joined = host._machine.joined

                def staged_joined() -> None:
                    joined()
                    stage.report("member")

                vars(host._machine)["joined"] = staged_joined
            shutdown = rendezvous.shutdown

            def staged_shutdown() -> bool:
                stage.reach(Phase.LEAVING)
                return shutdown()

            vars(rendezvous)["shutdown"] = staged_shutdown
            return rendezvous

        vars(launcher)["create_rendezvous"] = staged_create
        vars(launcher)["Starter"] = StagedStarter
        vars(session)["LogSink"] = lambda: stage


def _run(wish: dict[str, Any], stage: Stage) -> int:
    config = LaunchConfig(**wish["config"])
    script = Script(str(Path(worker.__file__)), tuple(wish["args"]))
    failures: list[tuple[int, int]] = []
    code, text = 0, ""
    try:
        launcher.run_job(config, script, show=stage.show, exit_barrier=stage.barrier, sink=stage)
    except HoldfastError as error:
        code, text = 1, f"{type(error).__name__}: {error}"
        if isinstance(error, WorkersFailed | Signalled):
            code = error.exit_code
        if isinstance(error, WorkersFailed):
            failures = [(one.rank, one.exit.code) for one in error.failures]
    stage.report("ended", text=text, failures=failures)
    return code


def show_stacks_at(number: signal.Signals) -> None:
    """Write the stacks of all threads to standard error whenever this signal comes.

    Call it before other threads start. A thread of its own waits for the signal, and writes while
    it holds the interpreter's lock. `faulthandler.register` would write without the lock, and read
    frames that running threads free meanwhile: that can crash.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})

    def show() -> None:
        while True:
            signal.sigwait({number})
            faulthandler.dump_traceback()

    threading.Thread(target=show, name="stacks", daemon=True).start()


def main(wish: dict[str, Any]) -> int:
    """Be an agent; return the exit code."""
    restore_signals()  # `nohup` would keep some of those that are to kill it from doing so
    show_stacks_at(signal.SIGUSR1)
    phase = wish.get("phase")
    stage = Stage(None if phase is None else Phase(phase), os.dup(1), os.dup(0))
    os.dup2(2, 1)  # for what the workers print
    vars(client)["RECONNECT_WITHIN_S"] = wish["reconnect_within_s"]
    stage.install()
    if wish.get("hold"):
        stage.hold("hold")
    before = take_snapshot()
    code = _run(wish, stage)
    leaks = [f"{leak.kind}: {leak.what}" for leak in find_leaks(before)]
    stage.report("left", leaks=leaks)
    return code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
