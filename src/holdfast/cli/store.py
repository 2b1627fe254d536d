"""`holdfast store`: serve a store, and use one from a shell.

Values are taken and printed as they are: text from arguments, bytes to standard output.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from holdfast.cli.exits import MISSING
from holdfast.store.open import open_store, serve_store
from holdfast.store.store import Store

__all__ = ["add_commands"]

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[Any]


def add_commands(commands: _Subparsers) -> None:
    """Add `store` and what stands below it."""
    store = commands.add_parser("store", help="serve a store, or use one", allow_abbrev=False)
    verbs = store.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = verbs.add_parser("serve", help="serve a store until interrupted", allow_abbrev=False)
    serve.add_argument(
        "endpoint",
        nargs="?",
        default="tcp://127.0.0.1:29400",
        help="where to listen (default: %(default)s; port 0 picks a free one)",
    )
    serve.set_defaults(run=_serve)

    _verb(verbs, "get", _get, "print a key's value; exit code 1 if there is none", "KEY")
    _verb(verbs, "set", _set, "write a key", "KEY", "VALUE")
    _verb(verbs, "add", _add, "add to a counter and print the sum", "KEY", "AMOUNT")
    _verb(verbs, "append", _append, "append to a value and print its length", "KEY", "VALUE")
    _verb(verbs, "delete", _delete, "remove a key; exit code 1 if there was none", "KEY")
    _verb(verbs, "wait", _wait, "wait for a key and print its value", "KEY")
    _verb(verbs, "list", _list, "print the keys that begin with a prefix", "PREFIX?")
    _verb(verbs, "watch", _watch, "print changes of keys that begin with a prefix", "PREFIX?")


def _verb(
    verbs: _Subparsers,
    name: str,
    act: Callable[[Store, argparse.Namespace], int],
    text: str,
    *arguments: str,
) -> None:
    parser = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
    for argument in arguments:
        optional = argument.endswith("?")
        dest = argument.rstrip("?").lower()
        kind = int if dest == "amount" else str
        if optional:
            parser.add_argument(dest, metavar=dest.upper(), nargs="?", default="", type=kind)
        else:
            parser.add_argument(dest, metavar=dest.upper(), type=kind)
    parser.add_argument("--store", metavar="ENDPOINT", help="default: $HOLDFAST_STORE")
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="S", help="seconds (default: %(default)g)"
    )

    def run(given: argparse.Namespace) -> int:
        with open_store(given.store, timeout=given.timeout) as store:
            return act(store, given)

    parser.set_defaults(run=run)


def _serve(given: argparse.Namespace) -> int:
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    over = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with serve_store(given.endpoint) as server:
        print(f"export HOLDFAST_STORE={server.endpoint}", flush=True)
        over.wait()
    return 0


def _write(value: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(value + b"\n")


def _get(store: Store, given: argparse.Namespace) -> int:
    value = store.get(given.key, timeout=given.timeout)
    if value is None:
        return MISSING
    _write(value)
    return 0


def _set(store: Store, given: argparse.Namespace) -> int:
    store.set(given.key, _argument_bytes(given.value), timeout=given.timeout)
    return 0


def _add(store: Store, given: argparse.Namespace) -> int:
    print(store.add(given.key, given.amount, timeout=given.timeout))
    return 0


def _append(store: Store, given: argparse.Namespace) -> int:
    print(store.append(given.key, _argument_bytes(given.value), timeout=given.timeout))
    return 0


def _delete(store: Store, given: argparse.Namespace) -> int:
    return 0 if store.delete(given.key, timeout=given.timeout) else MISSING


def _wait(store: Store, given: argparse.Namespace) -> int:
    _write(store.wait([given.key], timeout=given.timeout)[0])
    return 0


def _list(store: Store, given: argparse.Namespace) -> int:
    for entry in store.list_prefix(given.prefix, timeout=given.timeout):
        print(entry.key)
    return 0


def _watch(store: Store, given: argparse.Namespace) -> int:
    with store.watch(given.prefix, prefix=True, timeout=given.timeout) as watch:
        for change in watch:  # until interrupted
            shown = "(deleted)" if change.value is None else repr(change.value)[2:-1]
            print(f"{change.revision}\t{change.key}\t{shown}", flush=True)
    return 0


def _argument_bytes(text: str) -> bytes:
    """Return an argument's bytes as the shell gave them."""
    return text.encode("utf-8", "surrogateescape")
