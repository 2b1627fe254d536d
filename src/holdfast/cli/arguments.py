"""What the commands' arguments have in common: one line for a wrong one, checked before use."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
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
        self.optional_values: set[str] = set()
        """Options that may stand alone: the next word is no value of theirs, only what follows =.

        The parser has a positional argument that takes all remaining words then, `command`.
        """

    # Each command refuses what it does not know, where argparse leaves that to the topmost one.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = list(sys.argv[1:] if args is None else args)
        marked = [f"{word}=" if word in self.optional_values else word for word in words]
        found, unknown = super().parse_known_args(marked, namespace)
        if marked != words and (rest := getattr(found, "command", None)):
            found.command = words[-len(rest) :]
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown[0])}")
        return found, unknown

    def _hint(self, word: str) -> str:
        """Say which option a word was meant to be: what it begins, or else what it resembles."""
        name = word.partition("=")[0]
        known = [option for action in self._actions for option in action.option_strings]
        near = [option for option in known if option.startswith(name)] if len(name) > 2 else []
        near = near or _begins_like(name, known) or difflib.get_close_matches(name, known, n=1)
        return f"; did you mean {near[0]}?" if near else ""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)} (see {self.prog} --help)\n")


def _begins_like(name: str, known: Sequence[str]) -> list[str]:
    """Return the option that a word begins like, but for its last letter: --nprocs, --nproc-…."""
    return [option for option in known if len(name) > 6 and option.startswith(name[:-1])][:1]


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
