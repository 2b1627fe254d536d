"""`holdfast store`: serve a store, and use one from a shell.

Values are taken and printed as they are: bytes from the arguments, bytes to standard output, with
a line feed after them. Keys likewise, and they are UTF-8. Only `watch` escapes what it shows, so
that each change is one line.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast import env
from holdfast.cli.arguments import add_timeout, checked, one_line
from holdfast.cli.exits import MISSING
from holdfast.cli.output import flush, say, say_bytes
from holdfast.clock import Deadline
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.net.descriptors import many_descriptors
from holdfast.store.open import open_store, serve_store
from holdfast.store.ops import INT_MAX, INT_MIN, Change, check_key, check_prefix
from holdfast.store.store import Store

__all__ = ["add_commands"]

if TYPE_CHECKING:
    from holdfast.cli.arguments import Commands
    from holdfast.store.server import StoreServer

_log = logging.getLogger("holdfast.store")
_ENDING = {signal.SIGINT, signal.SIGTERM}


def add_commands(commands: Commands) -> None:
    """Add `store` and what stands below it."""
    text = "serve a store, or use one"
    store = commands.add_parser("store", help=text, description=text)
    verbs = store.add_subparsers(title="commands", metavar="COMMAND", required=True)

    text = "serve a store until interrupted or terminated"
    serve = verbs.add_parser("serve", help=text, description=text)
    serve.add_argument(
        "endpoint",
        metavar="ENDPOINT",
        nargs="?",
        default="tcp://127.0.0.1:29400",
        help="where to listen (default: %(default)s; port 0 picks a free one)",
    )
    serve.add_argument(
        "--join",
        metavar="ENDPOINT",
        help="become one more member of the store that is served there (tcp://host:port,…); "
        "three members survive the loss of one",
    )
    serve.set_defaults(run=_serve)

    _verb(verbs, "get", _get, "print a key's value; exit code 1 if there is none", _KEY)
    _verb(verbs, "set", _set, "write a key", _KEY, _VALUE)
    _verb(verbs, "add", _add, "add to a counter and print the sum", _KEY, _AMOUNT)
    _verb(verbs, "append", _append, "append to a value and print its length", _KEY, _VALUE)
    _verb(verbs, "delete", _delete, "remove a key; exit code 1 if there was none", _KEY)
    _verb(verbs, "wait", _wait, "wait for a key and print its value", _KEY)
    _verb(verbs, "list", _list, "print the keys that begin with a prefix", _PREFIX)
    _verb(verbs, "watch", _watch, "print keys with a prefix, and how they change", _PREFIX)


def _amount(text: str) -> int:
    try:
        amount = int(text)
    except ValueError:
        amount = INT_MAX + 1
    if not INT_MIN <= amount <= INT_MAX:
        raise UsageError(f"{text!r:.80} must be an integer of 64 bits, signed")
    return amount


def _argument_bytes(text: str) -> bytes:
    """Return an argument's bytes as the shell gave them."""
    return text.encode("utf-8", "surrogateescape")


_Argument = dict[str, Any]
_KEY: _Argument = {"dest": "key", "type": checked(check_key)}
_VALUE: _Argument = {"dest": "value", "type": _argument_bytes}
_AMOUNT: _Argument = {"dest": "amount", "type": checked(_amount)}
_PREFIX: _Argument = {"dest": "prefix", "type": checked(check_prefix), "nargs": "?", "default": ""}


def _verb(
    verbs: Commands,
    name: str,
    act: Callable[[Store, argparse.Namespace], int],
    text: str,
    *arguments: _Argument,
) -> None:
    parser = verbs.add_parser(name, help=text, description=text)
    for argument in arguments:
        parser.add_argument(metavar=argument["dest"].upper(), **argument)
    parser.add_argument("--store", metavar="ENDPOINT", help="default: $HOLDFAST_STORE")
    add_timeout(parser, "that it may take")

    def run(given: argparse.Namespace) -> int:
        deadline = Deadline.after(given.timeout)
        with open_store(given.store, timeout=given.timeout) as store:
            given.timeout = deadline.remaining()  # one limit for all of it
            return act(store, given)

    parser.set_defaults(run=run)


def _serve(given: argparse.Namespace) -> int:
    logging.basicConfig(format="%(message)s", level=env.current().log_level.value)
    # Blocked before any thread starts, for all of them: only sigwait takes these signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        with many_descriptors(), serve_store(given.endpoint, join=given.join) as server:
            dismissed: list[str] = []

            def end(why: str) -> None:
                dismissed.append(why)
                os.kill(os.getpid(), signal.SIGTERM)

            server.on_dismissed = end
            _tell_apart(given, server)
            say(f"export HOLDFAST_STORE=tcp://{','.join(server.members)}")
            flush()
            signal.sigwait(_ENDING)
            if dismissed:
                address = server.announced
                raise StoreUnavailable(
                    f"{address} is no member of its store any more: {dismissed[0]}; start it again",
                    address=str(address),
                )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0


def _tell_apart(given: argparse.Namespace, server: StoreServer) -> None:
    """Say whether this is a store of its own: nothing of an earlier one is kept."""
    if given.join is None:
        text = "a new, empty store; `--join` adds this process to one that is there already"
    else:
        text = f"a member of the store at {given.join}, with {len(server.members)} members now"
    _log.info("store %s: %s", server.announced, text)


def _get(store: Store, given: argparse.Namespace) -> int:
    value = store.get(given.key, timeout=given.timeout)
    if value is None:
        return MISSING
    say_bytes(value)
    return 0


def _set(store: Store, given: argparse.Namespace) -> int:
    store.set(given.key, given.value, timeout=given.timeout)
    return 0


def _add(store: Store, given: argparse.Namespace) -> int:
    say(str(store.add(given.key, given.amount, timeout=given.timeout)))
    return 0


def _append(store: Store, given: argparse.Namespace) -> int:
    say(str(store.append(given.key, given.value, timeout=given.timeout)))
    return 0


def _delete(store: Store, given: argparse.Namespace) -> int:
    return 0 if store.delete(given.key, timeout=given.timeout) else MISSING


def _wait(store: Store, given: argparse.Namespace) -> int:
    say_bytes(store.wait([given.key], timeout=given.timeout)[0])
    return 0


def _list(store: Store, given: argparse.Namespace) -> int:
    for entry in store.list_prefix(given.prefix, timeout=given.timeout):
        say_bytes(entry.key.encode())
    return 0


def _watch(store: Store, given: argparse.Namespace) -> int:
    with store.watch(given.prefix, prefix=True, timeout=given.timeout) as watch:
        for change in watch:  # until interrupted
            say_bytes(_shown(change).encode())
            flush()
    return 0


def _shown(change: Change) -> str:
    words = [str(change.revision), "deleted" if change.value is None else "set"]
    words.append(one_line(change.key))
    if change.value is not None:
        words.append(one_line(change.value.decode("utf-8", "backslashreplace")))
    return "\t".join(words)
