"""What the commands' arguments have in common: one line for a wrong one, checked before use."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from holdfast.clock import check_timeout
from holdfast.errors import UsageError

__all__ = ["Parser", "add_timeout", "checked", "one_line"]

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction["Parser"]

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """Complains in one line, where argparse would print its usage text first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)} (see {self.prog} --help)\n")


def one_line(text: str) -> str:
    """Escape what would break the line or play with the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def checked(check: Callable[[str], T]) -> Callable[[str], T]:
    """Make a `type` for argparse of a check, which hides the message of an error otherwise."""

    def convert(text: str) -> T:
        try:
            return check(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def add_timeout(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--timeout S`."""
    parser.add_argument(
        "--timeout",
        type=checked(_seconds),
        default=10.0,
        metavar="S",
        help=f"seconds {what}; inf for no limit (default: %(default)g)",
    )


def _seconds(text: str) -> float | None:
    try:
        return check_timeout(float(text))
    except ValueError:  # UsageError too, which speaks of None
        raise UsageError(f"{text!r:.80} must be zero or more seconds, or inf") from None
