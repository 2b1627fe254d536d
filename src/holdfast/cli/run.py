"""`holdfast run`: launch a job, or this node of one, as torchrun does.

Only asking for it costs: what launches is imported when something is launched.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from signal import Signals
from typing import TYPE_CHECKING

from holdfast import env
from holdfast.cli.arguments import one_line
from holdfast.cli.output import complain, say
from holdfast.cli.run_flags import Text, add_flags, read_flags
from holdfast.clock import SYSTEM_CLOCK, iso_time
from holdfast.errors import HoldfastError, WorkersFailed, exit_code
from holdfast.observe.live import Live, is_for_us
from holdfast.observe.patient import patient_stderr
from holdfast.on.choose import concerns
from holdfast.process.signals import SignalEvents

if TYPE_CHECKING:
    from holdfast.agent.status import AgentStatus
    from holdfast.cli.arguments import Commands
    from holdfast.cli.run_resolve import Invocation

__all__ = ["add_command"]

_DESCRIPTION = """\
Start workers on this node and keep them running: on failures, and when nodes come and go.
Arguments after SCRIPT are passed to it. Every flag that torchrun has can also be set by a variable,
such as PET_NNODES, and may be written with _ instead of -.
"""


def add_command(commands: Commands) -> None:
    """Add `run`."""
    parser = commands.add_parser(
        "run",
        help="launch a job, or this node of one",
        description=_DESCRIPTION,
        usage="%(prog)s [-h] [FLAG ...] SCRIPT [ARGUMENT ...]",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print as JSON what would be done, and do nothing"
    )
    # Takes everything from the first word that is no flag; a `--` before it may be left there.
    parser.add_argument("command", metavar="SCRIPT", nargs=argparse.PARSER, help="what to run")
    add_flags(parser)
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    with patient_stderr(sys.stderr):  # a job does not stop because its output is not read
        return _run_or_show(given)


def _run_or_show(given: argparse.Namespace) -> int:
    variables: Mapping[str, str] = env.variables()
    texts: Mapping[str, Text] = read_flags(given, variables)
    if texts["hosts"].place or texts["host_file"].place:
        from holdfast.cli.run_on import run_by_ssh

        return run_by_ssh(texts, given.command, variables, dry=given.dry_run)
    if not concerns(texts["on"].value, variables):
        return _run_or_show_one(given, texts, variables)
    from holdfast.cli.run_on import settled

    with settled(texts, variables, dry=given.dry_run) as (texts, variables):
        return _run_or_show_one(given, texts, variables)


def _run_or_show_one(
    given: argparse.Namespace, texts: Mapping[str, Text], variables: Mapping[str, str]
) -> int:
    """Run this node's part of the job."""
    from holdfast.cli.run_resolve import describe, resolve

    found = resolve(texts, given.command, variables)
    for warning in found.warnings:
        complain(f"holdfast: {one_line(warning)}")
    if given.dry_run:
        say(json.dumps(describe(found), indent=2))
        return 0
    _log_to_stderr(variables, events=found.config.event_log_handler == "console")
    terminal = is_for_us(sys.stderr, variables)
    live = Live(sys.stderr, terminal=terminal, color=not variables.get("NO_COLOR"))
    return _launch(found, live)


def _launch(found: Invocation, live: Live) -> int:
    """Run the job, show it, and say how it ended; return the exit code."""
    from holdfast.agent.outcome import Ending
    from holdfast.cli.run_end import last_line
    from holdfast.cli.run_view import view
    from holdfast.launch.launcher import run_job

    host, started = os.uname().nodename, SYSTEM_CLOCK.monotonic()
    late = _LateSignal(found.config.signals)
    last: AgentStatus | None = None

    def show(status: AgentStatus) -> None:
        nonlocal last
        last = status
        late.is_late = status.ending not in (None, Ending.SIGNALLED, Ending.STOPPED)
        live.show(view(status, host, found.config.max_restarts))

    code = 0
    try:
        with live, late.events:
            run_job(found.config, found.entrypoint, show=show, adopt=True)
    except WorkersFailed as error:
        _print_report(str(error))
        code = error.exit_code
    except HoldfastError as error:
        for note in getattr(error, "__notes__", ()):  # what had gone wrong before it
            _print_report(note)
        told = (Ending.SIGNALLED, Ending.STOPPED, Ending.BROKEN)
        if last is None or last.ending not in told:
            raise  # it is not why the agent ended: no line tells it yet
        code = exit_code(error)
    if last is not None and last.ending is not None:
        line = last_line(last, last.ending, SYSTEM_CLOCK.monotonic() - started)
        complain(f"holdfast: {iso_time(SYSTEM_CLOCK.wall())}  {host}  {one_line(line)}")
    return code


class _LateSignal:
    """Keeps one signal that comes after the job's end from changing how the command ends.

    The node that hosts the store waits for the others then. At any other time, and when it comes
    again, a signal that the agent does not hear does what it would do without us, or, if it was
    ignored, as a shell lets its background jobs ignore SIGINT, what it does in the foreground.
    """

    def __init__(self, signals: Iterable[Signals]) -> None:
        self.events = SignalEvents(signals, self._heard)
        self.is_late = False

    def _heard(self, number: int) -> None:
        if not self.is_late:
            self.events.__exit__(None, None, None)
            if signal.getsignal(number) == signal.SIG_IGN:
                interrupt = number == signal.SIGINT
                signal.signal(number, signal.default_int_handler if interrupt else signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.is_late = False


def _log_to_stderr(variables: Mapping[str, str], *, events: bool) -> None:
    """Log as LOGLEVEL says. Without it only what else would not be heard, and events if asked."""
    chosen = bool(variables.get("LOGLEVEL"))
    handler = logging.StreamHandler()
    if not chosen and not events:  # what they tell is seen on the lines of the nodes
        handler.addFilter(lambda record: record.name != "holdfast")
    quiet = logging.INFO if events else logging.WARNING
    level = env.current().log_level.value if chosen else quiet
    logging.basicConfig(format="holdfast: %(message)s", level=level, handlers=[handler])


def _print_report(text: str) -> None:
    """Print the report as it stands, but for what would play with the terminal."""
    for line in text.splitlines():
        complain(one_line(line))
