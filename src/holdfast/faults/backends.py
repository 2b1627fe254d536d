"""The backend `faulty`: an agent whose messages have faults according to a plan.

    init_rpc(name, backend="faulty", options={"plan": "drop PYTHON_CALL p=0.01"})

It also takes the options of torch's faulty agent, which are rules of a plan:

    messages_to_fail    kinds whose sending fails at once, `num_fail_sends` times for each message
    num_fail_sends      how often; 0 if it is not given
    messages_to_delay   seconds by which a kind is delayed: {"PYTHON_CALL": 1.5}

If the plan is a text, these rules are added after its own. A `FaultPlan` is used unchanged, without
more rules, since the user reads the record from that object afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import UsageError
from holdfast.faults.plan import Action, FaultPlan, Rule, kind_of, parse_plan
from holdfast.faults.transport import FaultyTransport
from holdfast.rpc.backends import register_backend
from holdfast.rpc.client.transport import MessageTransport
from holdfast.rpc.wire.messages import Kind

__all__ = ["make_faulty", "plan_of"]

_KNOWN = frozenset({"plan", "messages_to_fail", "messages_to_delay", "num_fail_sends"})

_log = logging.getLogger("holdfast.faults")


def make_faulty(options: Mapping[str, Any]) -> MessageTransport:
    """Make a transport with the faults of the options' plan."""
    plan = plan_of(options)
    _log.warning("messages of this process go wrong on purpose: %d rules", len(plan.rules))
    return FaultyTransport(plan)


def plan_of(options: Mapping[str, Any]) -> FaultPlan:
    """Return the plan that the options describe; UsageError names the invalid option."""
    odd = sorted(set(options) - _KNOWN)
    if odd:
        known = ", ".join(sorted(_KNOWN))
        raise UsageError(f"RPC backend faulty: option {odd[0]!r:.60} is unknown; there are {known}")
    given = options.get("plan")
    if isinstance(given, FaultPlan):
        others = ", ".join(sorted(set(options) - {"plan"}))
        if others:
            raise UsageError(f"plan: a FaultPlan cannot be combined with {others}: add rules to it")
        return given
    if given is not None and not isinstance(given, str):
        sort = f"{type(given).__module__}.{type(given).__qualname__}"
        raise UsageError(
            f"plan: {given!r:.60} ({sort}): must be a {FaultPlan.__module__}.FaultPlan, or its text"
        )
    plan = parse_plan(given or "")
    rules = list(plan.rules)
    each = options.get("num_fail_sends", 0)
    if not isinstance(each, int):
        raise UsageError(f"num_fail_sends: {each!r:.60}: must be a whole number")
    to_fail = options.get("messages_to_fail") or ()
    if isinstance(to_fail, str):
        raise UsageError("messages_to_fail: must be a list of kinds of messages")
    kinds = frozenset(_kinds("messages_to_fail", to_fail))
    if kinds:
        rules.append(Rule(action=Action.FAIL, kinds=kinds, each=each))
    delays = options.get("messages_to_delay") or {}
    if not isinstance(delays, Mapping):
        raise UsageError("messages_to_delay: must be a mapping of kinds to seconds")
    for kind in _kinds("messages_to_delay", delays):
        seconds = _seconds(delays[kind.name])
        rules.append(Rule(action=Action.DELAY, kinds=frozenset({kind}), seconds=seconds))
    return FaultPlan(plan.seed, rules)


def _kinds(option: str, names: Iterable[object]) -> list[Kind]:
    found = []
    for name in names:
        try:
            found.append(kind_of(name))
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from None
    return found


def _seconds(given: object) -> float:
    if not isinstance(given, (int, float)):
        raise UsageError(f"messages_to_delay: {given!r:.60}: must be seconds")
    return float(given)


register_backend("faulty", make_faulty)
