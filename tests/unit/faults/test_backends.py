"""The backend of faults: its options, and that it does not come unseen."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.faults.backends import make_faulty, plan_of
from holdfast.faults.plan import Action, FaultPlan, Rule
from holdfast.faults.transport import FaultyTransport
from holdfast.rpc.backends import known_backends, make_transport
from holdfast.rpc.wire.messages import Kind
from holdfast.testing.faultplan import FaultPlan as SimulatedPlan


def test_it_is_known_by_its_name() -> None:
    assert "faulty" in known_backends()
    transport = make_transport("faulty", {"plan": "drop p=0.5"})
    assert isinstance(transport, FaultyTransport)
    assert [rule.action for rule in transport.plan.rules] == ["drop"]
    transport.close()


def test_using_it_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    make_faulty({"plan": "drop\ndelay seconds=1"}).close()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "go wrong on purpose: 2 rules" in record.getMessage()


def test_a_plan_as_it_is_or_as_text() -> None:
    plan = FaultPlan(3, [Rule(action=Action.RESET)])
    assert plan_of({"plan": plan}) is plan
    assert str(plan_of({"plan": str(plan)})) == str(plan)
    assert plan_of({}).rules == ()


def test_the_options_of_torch() -> None:
    plan = plan_of(
        {
            "messages_to_fail": ["RREF_FORK_REQUEST", "RREF_USER_DELETE"],
            "num_fail_sends": 3,
            "messages_to_delay": {"PYTHON_CALL": 1.5, "SCRIPT_CALL": 2},
        }
    )
    both = frozenset({Kind.RREF_FORK_REQUEST, Kind.RREF_USER_DELETE})
    assert plan.rules == (
        Rule(action=Action.FAIL, kinds=both, each=3),
        Rule(action=Action.DELAY, kinds=frozenset({Kind.PYTHON_CALL}), seconds=1.5),
        Rule(action=Action.DELAY, kinds=frozenset({Kind.SCRIPT_CALL}), seconds=2.0),
    )


def test_options_and_a_plan_come_together() -> None:
    plan = plan_of({"plan": "seed 9\ndrop", "messages_to_fail": ["PYTHON_CALL"]})
    assert plan.seed == 9
    assert [rule.action for rule in plan.rules] == ["drop", "fail"]


@pytest.mark.parametrize("kind", [kind.name for kind in Kind if kind.is_request])
def test_every_kind_of_request(kind: str) -> None:
    (rule,) = plan_of({"messages_to_fail": [kind]}).rules
    assert rule.kinds == {Kind[kind]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"messages": []}, "option 'messages' is unknown; there are messages_to_delay, "),
        ({"messages_to_fail": ["REPLY"]}, "messages_to_fail: 'REPLY' is not a kind .*PYTHON_CALL"),
        ({"messages_to_fail": [3]}, "messages_to_fail: 3 is not a kind"),
        ({"messages_to_fail": "PYTHON_CALL"}, "messages_to_fail: must be a list"),
        ({"messages_to_delay": {"X": 1}}, "messages_to_delay: 'X' is not a kind"),
        ({"messages_to_delay": ["PYTHON_CALL"]}, "messages_to_delay: must be a mapping"),
        ({"messages_to_delay": {"PYTHON_CALL": "x"}}, "messages_to_delay: 'x': must be seconds"),
        ({"messages_to_fail": ["PYTHON_CALL"], "num_fail_sends": -1}, "each=-1: is too small"),
        ({"num_fail_sends": "3"}, "num_fail_sends: '3': must be a whole number"),
        ({"plan": 0}, r"plan: 0 \(builtins.int\): must be a holdfast.faults.plan.FaultPlan, or "),
        ({"plan": SimulatedPlan()}, r"\(holdfast.testing.faultplan.FaultPlan\): must be a holdf"),
        (
            {"plan": FaultPlan(0, []), "messages_to_fail": ["BOGUS"], "num_fail_sends": 1},
            "plan: a FaultPlan cannot be combined with messages_to_fail, num_fail_sends: add rules",
        ),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_of(options)
