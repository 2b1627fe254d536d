"""`holdfast doctor ENDPOINT`: check what it takes to use a store, one step after the other.

A connection that fails somewhere costs people hours, so each step is tried alone and says what it
found: the endpoint's form, the names, the ports, the handshake, the secret, the store's answer.
The first step that fails ends the examination of that address.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast import env
from holdfast.cli.exits import exit_code
from holdfast.clock import SYSTEM_CLOCK, Deadline, check_timeout
from holdfast.errors import HoldfastError, Step, UsageError
from holdfast.net.address import Address, Endpoint
from holdfast.net.auth import VERSION
from holdfast.net.tcp import open_socket, resolve, shake_hands
from holdfast.store.messages import KEY_CONTEXT
from holdfast.store.open import choose_secret, open_store, parse_store_endpoint

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[Any]

__all__ = ["add_command", "examine"]

_HINTS = {
    Step.RESOLVE: "is the name right, and known to this machine's name servers or /etc/hosts?",
    Step.TCP: "is the server running there, and does a firewall let this port through?",
    Step.HANDSHAKE: "is it a holdfast store that listens there, or something else?",
    Step.VERSION: "install the same version of holdfast on both sides",
    Step.SECRET: "give both sides the same HOLDFAST_SECRET_FILE; on loopback: run as the same user",
}


def add_command(commands: _Subparsers) -> None:
    """Add `doctor`."""
    text = "check a store's endpoint step by step"
    parser = commands.add_parser("doctor", help=text, description=text, allow_abbrev=False)
    parser.add_argument("endpoint", metavar="ENDPOINT", help="such as tcp://127.0.0.1:29400")
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="S", help="for each step (default: 10)"
    )
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    if check_timeout(given.timeout) is None:
        raise UsageError(f"--timeout {given.timeout}: must be a finite number of seconds")
    failure = examine(given.endpoint, given.timeout, env.current(), print)
    return 0 if failure is None else exit_code(failure)


def examine(
    endpoint: str, timeout: float, environment: env.Environment, say: Callable[[str], None]
) -> HoldfastError | None:
    """Check an endpoint step by step, saying each; return the failure that makes it unusable.

    Of several addresses some may fail: what counts is that the store answers.
    """
    where = parse_store_endpoint(endpoint)
    report = _Report(say)
    report.passed("endpoint", str(where))
    for address in where.addresses:
        try:
            _examine_address(where, address, timeout, environment, report)
        except HoldfastError as error:
            report.failed(error)
            if len(where.addresses) == 1:
                return error
    try:
        with open_store(endpoint, timeout=timeout, environment=environment) as store:
            started = SYSTEM_CLOCK.monotonic()
            keys = store.count(timeout=timeout)
            report.passed("store", f"answers in {_ms_since(started)}; keys: {keys}")
    except UsageError:
        raise
    except HoldfastError as error:
        report.failed(error)
        return error
    return None


def _examine_address(
    where: Endpoint,
    address: Address,
    timeout: float,
    environment: env.Environment,
    report: _Report,
) -> None:
    found = resolve(address, Deadline.after(timeout))
    report.passed(Step.RESOLVE, f"{address.host} is {', '.join(str(w[0]) for _, w in found)}")
    started = SYSTEM_CLOCK.monotonic()
    with open_socket(address, Deadline.after(timeout)) as sock:
        report.passed(Step.TCP, f"{address} in {_ms_since(started)}")
        if where.scheme == "tcp":
            key = choose_secret(address, None, environment).key(KEY_CONTEXT)
            shake_hands(sock, key, address, Deadline.after(timeout))
            report.passed(Step.HANDSHAKE, f"version {VERSION}; both sides hold the same secret")


def _ms_since(started: float) -> str:
    return f"{(SYSTEM_CLOCK.monotonic() - started) * 1000:.1f} ms"


class _Report:
    """Says each step in one line, and for a failure what to look at."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def passed(self, step: str, text: str) -> None:
        self._say(f"ok    {step:<17}{text}")

    def failed(self, error: HoldfastError) -> None:
        step = getattr(error, "step", None)
        self._say(f"FAIL  {step or 'store':<17}{error}")
        if step in _HINTS:
            self._say(f"      {'':<17}{_HINTS[step]}")
