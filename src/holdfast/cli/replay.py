"""`holdfast replay REPORT`: run the last steps of a failed job's machines again, and tell them.

Each step goes through the machine of the code that is installed here. A line says what came, what
the machine decided, and why; the first decision that differs from the recorded one ends the story
of that machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import __version__
from holdfast.cli.arguments import one_line
from holdfast.cli.exits import DIFFERS
from holdfast.cli.output import say
from holdfast.errors import UsageError
from holdfast.launch.recordings import LeftOut, code_of, read_machines
from holdfast.observe.replay import LoadedRecording

if TYPE_CHECKING:
    from holdfast.cli.arguments import Commands

__all__ = ["add_command"]

FILE_BYTES_MAX = 64 * 1024 * 1024

_TEXT = "run the recorded steps of a failed job again"
_DESCRIPTION = """\
Run the steps that the report of a failed job holds through the machines of this version of
holdfast, and tell them, one line a step: the seconds of the node's own clock, what came, what was
decided, and why. The exit code is 0 if every decision is the recorded one, 1 if one differs, 2 if
the file cannot be read.
"""


def add_command(commands: Commands) -> None:
    """Add `replay`."""
    parser = commands.add_parser("replay", help=_TEXT, description=_DESCRIPTION)
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="what `holdfast run --report FILE` wrote"
    )
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    try:
        machines = read_machines(json.loads(_read(given.file)))
    except UsageError as error:
        raise UsageError(f"report {str(given.file)!r}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"report {str(given.file)!r}: not JSON: {error}") from None
    return DIFFERS if [machine for machine in machines if not _tell(machine)] else 0


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError((error.strerror or str(error)).lower()) from None
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"it is larger than {FILE_BYTES_MAX} bytes")
    return data


def _tell(machine: LoadedRecording | LeftOut) -> bool:
    """Tell one machine's steps; say whether every decision is the recorded one."""
    if isinstance(machine, LeftOut):
        say(f"{machine.machine}: not recorded: {one_line(machine.why)}")
        return True
    name, steps = machine.replayable.kind.name, len(machine.steps)
    dropped = f", {machine.dropped} before them were not kept" if machine.dropped else ""
    say(f"{name}: {steps} steps{dropped}, recorded by {_code(machine)}")
    for number, step in enumerate(machine.replay(), 1):
        say(f"{step.now:12.3f}  {one_line(f'{step.came} -> {step.decided}')}")
        if step.recorded is not None:
            say(f"{name}: step {number} of {steps} differs; recorded was:")
            say(f"{step.now:12.3f}  {one_line(f'{step.came} -> {step.recorded}')}")
            return False
    say(f"{name}: every decision is the recorded one")
    return True


def _code(machine: LoadedRecording) -> str:
    if machine.code == code_of(machine.replayable):
        return "the same code"
    return f"other code: holdfast {one_line(machine.version)}, this is {__version__}"
