"""`holdfast`: parse the arguments, run one command, turn errors into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from holdfast import __version__
from holdfast.cli.exits import INTERRUPTED, exit_code
from holdfast.errors import HoldfastError

__all__ = ["main", "parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Raises SystemExit for --help and the like."""
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    """Complains in one line; argparse would print its usage text first."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command line."""
    from holdfast.cli import doctor, store

    top = _Parser(
        prog="holdfast",
        description="Elastic jobs and RPC for Python that hold when machines don't.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    store.add_commands(commands)
    doctor.add_command(commands)
    return top
