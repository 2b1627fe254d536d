"""`holdfast doctor ENDPOINT`: check what it takes to use a store, one step after the other.

A connection that fails somewhere costs people hours, so each step is tried alone and says what it
found: the endpoint's form, the names, the ports, the handshake, the secret, the store's answer.
The first step that fails ends the examination of that address. Nothing is written to the store.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import env
from holdfast.cli.arguments import add_timeout, checked, one_line
from holdfast.cli.exits import exit_code
from holdfast.cli.output import say
from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import HoldfastError, Step, UsageError
from holdfast.net.address import Address
from holdfast.net.auth import VERSION
from holdfast.net.tcp import HANDSHAKE_WITHIN_S, open_socket, resolve, shake_hands
from holdfast.store.messages import KEY_CONTEXT
from holdfast.store.open import choose_secret, open_store, parse_store_endpoint

if TYPE_CHECKING:
    from holdfast.cli.arguments import Commands

__all__ = ["add_command", "examine"]

_HINTS: dict[str, str] = {
    Step.RESOLVE: "is the name right, and known to this machine's name servers or /etc/hosts?",
    Step.TCP: "is the server running there, and does a firewall allow this port?",
    Step.HANDSHAKE: "does a holdfast store listen there, or another program?",
    Step.VERSION: "install the same version of holdfast on both sides",
    Step.SECRET: "give both sides the same HOLDFAST_SECRET_FILE; on loopback: run as the same user",
}


def add_command(commands: Commands) -> None:
    """Add `doctor`."""
    text = "check a store's endpoint step by step"
    parser = commands.add_parser("doctor", help=text, description=text)
    parser.add_argument(
        "endpoint",
        metavar="ENDPOINT",
        type=checked(_endpoint),
        help="such as tcp://127.0.0.1:29400, or host:port for the same",
    )
    parser.add_argument(
        "--secret-file", type=Path, metavar="FILE", help="the job's secret (HOLDFAST_SECRET_FILE)"
    )
    add_timeout(parser, "for each step")
    parser.set_defaults(run=_run)


def _endpoint(text: str) -> str:
    """Return an endpoint, whole: as `holdfast run`, this takes host:port for a store of ours."""
    return str(parse_store_endpoint(text if "://" in text else f"tcp://{text}"))


def _run(given: argparse.Namespace) -> int:
    environment = env.current()
    if given.secret_file is not None:
        environment = replace(environment, secret=None, secret_file=given.secret_file)
    failure = examine(given.endpoint, given.timeout, environment, say)
    return 0 if failure is None else exit_code(failure)


def examine(
    endpoint: str,
    timeout: float | None,
    environment: env.Environment,
    say: Callable[[str], None],
) -> HoldfastError | None:
    """Check an endpoint step by step, saying each; return the failure that makes it unusable.

    Of several addresses some may fail: what counts is that the store answers.
    """
    where = parse_store_endpoint(endpoint)
    report = _Report(say)
    report.passed("endpoint", str(where))
    for address in where.addresses:
        try:
            _examine_address(address, where.scheme == "tcp", timeout, environment, report)
        except HoldfastError as error:
            lacks = Step.SECRET if isinstance(error, UsageError) else "address"
            report.failed(getattr(error, "step", None) or lacks, error)
            if len(where.addresses) == 1:
                return error
    if where.scheme == "file" and not os.path.lexists(where.path):
        report.passed("file", "does not exist yet; the first process that uses it creates it")
        return None
    try:
        _examine_store(endpoint, timeout, environment, report)
    except HoldfastError as error:
        report.failed("store", error)
        return error
    return None


def _examine_address(
    address: Address,
    is_ours: bool,
    timeout: float | None,
    environment: env.Environment,
    report: _Report,
) -> None:
    """Try each step, the secret last: a name that is wrong needs none to be seen."""
    found = resolve(address, Deadline.after(timeout))
    report.passed(Step.RESOLVE, f"{address.host} is {', '.join(str(w[0]) for _, w in found)}")
    started = SYSTEM_CLOCK.monotonic()
    with open_socket(address, Deadline.after(timeout)) as sock:
        report.passed(Step.TCP, f"{address} in {_ms_since(started)}")
        if is_ours:
            secret = choose_secret(address, None, environment)
            limit = Deadline.after(timeout).sooner(HANDSHAKE_WITHIN_S)
            shake_hands(sock, secret.key(KEY_CONTEXT), address, limit)
            report.passed(Step.HANDSHAKE, f"version {VERSION}; both sides hold the same secret")


def _examine_store(
    endpoint: str, timeout: float | None, environment: env.Environment, report: _Report
) -> None:
    with open_store(endpoint, timeout=timeout, environment=environment) as store:
        started = SYSTEM_CLOCK.monotonic()
        keys = store.count(timeout=timeout)
        report.passed("store", f"answers in {_ms_since(started)}; keys: {keys}")


def _ms_since(started: float) -> str:
    return f"{(SYSTEM_CLOCK.monotonic() - started) * 1000:.1f} ms"


class _Report:
    """Says each step in one line, and for a failure what to look at."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def passed(self, step: str, text: str) -> None:
        """Say what a step found."""
        self._say(f"ok    {step:<17}{text}")

    def failed(self, step: str, error: HoldfastError) -> None:
        """Say what went wrong, and what to look at."""
        self._say(f"FAIL  {step:<17}{one_line(str(error))}")
        if step in _HINTS:
            self._say(f"      {'':<17}{_HINTS[step]}")
