"""`holdfast`: parse the arguments, run one command, turn errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from holdfast import __version__
from holdfast.cli.arguments import Parser, one_line
from holdfast.cli.exits import BUG, INTERRUPTED, NO_OUTPUT, exit_code
from holdfast.cli.output import OutputFailed, complain, drop, flush
from holdfast.errors import HoldfastError

__all__ = ["main", "parser"]

_STEERING = ("ps", "status", "stop", "events")
_COMMANDS = ("run", *_STEERING, "stack", "logs", "page", "store", "doctor", "replay")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Raises SystemExit for --help and the like."""
    _open_what_is_closed()
    try:
        try:
            words = sys.argv[1:] if argv is None else argv
            arguments = parser(words[0] if words else "").parse_args(words)
            code: int = arguments.run(arguments)
            return code
        finally:
            flush()  # here, where failing has an exit code
    except HoldfastError as error:
        complain(f"holdfast: {one_line(str(error))}")
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OutputFailed as error:
        drop(sys.stdout)
        if isinstance(error.cause, BrokenPipeError):  # the reader of our output has closed it
            return 0
        complain(f"holdfast: {one_line(str(error))}")
        return NO_OUTPUT
    except Exception:
        complain(traceback.format_exc().rstrip("\n"))
        complain("holdfast: this is a bug in holdfast; please report it with the lines above")
        return BUG


def parser(command: str = "") -> Parser:
    """Make the parser of the command line.

    If `command` is one, the parser has that one alone: the others' imports take their time.
    """
    top = Parser(
        prog="holdfast",
        description="Elastic jobs and RPC for Python that hold when machines don't.",
    )
    top.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    wanted = (command,) if command in _COMMANDS else _COMMANDS
    if "run" in wanted:
        from holdfast.cli import run

        run.add_command(commands)
    if set(_STEERING) & set(wanted):
        from holdfast.cli import steer

        for name in _STEERING:
            if name in wanted:
                getattr(steer, f"add_{name}")(commands)
    if "stack" in wanted:
        from holdfast.cli import stack

        stack.add_stack(commands)
    if "logs" in wanted:
        from holdfast.cli import logs

        logs.add_logs(commands)
    if "page" in wanted:
        from holdfast.cli import page

        page.add_page(commands)
    if "store" in wanted:
        from holdfast.cli import store

        store.add_commands(commands)
    if "doctor" in wanted:
        from holdfast.cli import doctor

        doctor.add_command(commands)
    if "replay" in wanted:
        from holdfast.cli import replay

        replay.add_command(commands)
    return top


def _open_what_is_closed() -> None:
    """Lead streams nowhere that our parent has closed: no socket must get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # as long as we live
