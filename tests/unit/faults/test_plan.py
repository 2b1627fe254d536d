"""Plans: which messages they choose, how often, and as text."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.faults.plan import Action, FaultPlan, Fired, Moment, Rule, parse_plan
from holdfast.rpc.wire.messages import Kind

CALL = Kind.PYTHON_CALL


def times(plan: FaultPlan, *messages: object, kind: Kind = CALL, to: str = "w1") -> list[int]:
    """Show each message to a plan; return how many faults happen to each."""
    return [len(plan.decide(kind, to, Moment.REQUEST, message)) for message in messages]


class TestChoosing:
    def test_a_rule_without_conditions_takes_everything(self) -> None:
        plan = FaultPlan(0, [Rule(action=Action.DROP)])
        fired = Fired(Action.DROP, Moment.REQUEST, CALL, "w1", 0.0)
        assert plan.decide(CALL, "w1", Moment.REQUEST, 1) == [fired]
        assert times(plan, 2, kind=Kind.RREF_USER_DELETE, to="w2") == [1]

    def test_fp1_by_kind_receiver_and_moment(self) -> None:
        rule = Rule(
            action=Action.DROP,
            moment=Moment.REPLY,
            kinds=frozenset({CALL}),
            to=frozenset({"w1"}),
        )
        plan = FaultPlan(0, [rule])
        assert plan.decide(CALL, "w1", Moment.REPLY, 1)
        assert not plan.decide(CALL, "w1", Moment.REQUEST, 1)
        assert not plan.decide(CALL, "w2", Moment.REPLY, 1)
        assert not plan.decide(Kind.SCRIPT_CALL, "w1", Moment.REPLY, 1)

    def test_fp1_so_often_in_all(self) -> None:
        plan = FaultPlan(0, [Rule(action=Action.DROP, times=2)])
        assert times(plan, 1, 2, 3, 4) == [1, 1, 0, 0]

    def test_so_often_for_each_message(self) -> None:
        plan = FaultPlan(0, [Rule(action=Action.FAIL, each=2)])
        assert times(plan, "a", "b", "a", "b", "a", "b") == [1, 1, 1, 1, 0, 0]

    def test_never(self) -> None:
        assert times(FaultPlan(0, [Rule(action=Action.FAIL, each=0)]), 1, 2) == [0, 0]
        assert times(FaultPlan(0, [Rule(action=Action.FAIL, times=0)]), 1, 2) == [0, 0]
        assert times(FaultPlan(0, [Rule(action=Action.FAIL, p=0.0)]), 1, 2) == [0, 0]

    def test_the_nth_only(self) -> None:
        plan = FaultPlan(0, [Rule(action=Action.DROP, nth=3)])
        assert times(plan, 1, 2, 3, 4, 3) == [0, 0, 1, 0, 0]

    def test_dice_are_thrown_the_same_for_the_same_seed(self) -> None:
        rule = Rule(action=Action.DROP, p=0.3)
        first, again, other = (FaultPlan(seed, [rule]) for seed in (7, 7, 8))
        messages = range(1000)
        thrown = times(first, *messages)
        assert thrown == times(again, *messages) != times(other, *messages)
        assert 200 < sum(thrown) < 400

    def test_several_rules_may_meet(self) -> None:
        plan = FaultPlan(0, [Rule(action=Action.DELAY, seconds=1), Rule(action=Action.DUPLICATE)])
        assert times(plan, 1) == [2]


class TestRecord:
    def test_fp2_everything_that_happened(self) -> None:
        plan = FaultPlan(0, [Rule(action=Action.DROP, nth=2), Rule(action=Action.DUPLICATE)])
        times(plan, 1, 2)
        assert [fault.action for fault in plan.record] == ["duplicate", "drop", "duplicate"]
        assert plan.fired() == {Action.DUPLICATE: 2, Action.DROP: 1}
        assert plan.counts() == [1, 2]

    def test_what_has_not_happened_as_often_as_it_was_to(self) -> None:
        twice = Rule(action=Action.DROP, times=2)
        once = Rule(action=Action.RESET, moment=Moment.RUNNING)
        never = Rule(action=Action.FAIL, times=0)
        plan = FaultPlan(0, [twice, once, never])
        assert plan.short_of() == [twice, once]
        times(plan, 1)
        assert plan.short_of() == [twice, once]
        times(plan, 2)
        assert plan.short_of() == [once]
        plan.decide(CALL, "w1", Moment.RUNNING, 3)
        assert plan.short_of() == []


class TestChecks:
    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"p": 1.5}, "p=1.5: must be from 0 to 1"),
            ({"p": float("nan")}, "p=nan: must be from 0 to 1"),
            ({"seconds": -1.0}, "seconds=-1.0: must not be negative"),
            ({"seconds": float("inf")}, "seconds=inf"),
            ({"times": -1}, "times=-1: is too small"),
            ({"each": -1}, "each=-1: is too small"),
            ({"nth": 0}, "nth=0: is too small"),
        ],
    )
    def test_numbers(self, wrong: dict[str, float], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            Rule(action=Action.DROP, **wrong)  # type: ignore[arg-type]

    def test_what_is_never_asked_about(self) -> None:
        with pytest.raises(UsageError, match="'REPLY' is not a kind of message; there are PYTHON"):
            Rule(action=Action.DROP, kinds=frozenset({Kind.REPLY}))
        with pytest.raises(UsageError, match="fault drop: to= is for names of workers"):
            Rule(action=Action.DROP, to=frozenset({"w1", ""}))

    @pytest.mark.parametrize("action", list(Action))
    @pytest.mark.parametrize("moment", list(Moment))
    def test_what_can_happen_when(self, action: Action, moment: Moment) -> None:
        possible: dict[str, set[str]] = {
            "request": set(Action),
            "reply": {"drop", "delay", "reset", "corrupt"},
            "running": {"reset"},
        }
        if action in possible[moment]:
            Rule(action=action, moment=moment)
        else:
            with pytest.raises(
                UsageError, match=f"fault {action}: not possible at the moment {moment}"
            ):
                Rule(action=action, moment=moment)


rules = st.builds(
    Rule,
    action=st.just(Action.DROP),
    moment=st.sampled_from([Moment.REQUEST, Moment.REPLY]),
    kinds=st.frozensets(st.sampled_from([kind for kind in Kind if kind.is_request]), max_size=3),
    to=st.frozensets(st.from_regex(r"[A-Za-z0-9\-_:]{1,8}", fullmatch=True), max_size=3),
    times=st.none() | st.integers(0, 10**9),
    each=st.none() | st.integers(0, 10**9),
    nth=st.none() | st.integers(1, 10**9),
    p=st.floats(0, 1),
    seconds=st.floats(0, 1e9),
)


class TestText:
    def test_an_example(self) -> None:
        plan = parse_plan(
            """
            seed 7
            fail RREF_FORK_REQUEST,RREF_USER_DELETE each=3   # as torch does
            drop reply PYTHON_CALL to=w1,w2 p=0.25 nth=2

            reset running times=5
            """
        )
        fail, drop, reset = plan.rules
        assert plan.seed == 7
        assert fail == Rule(
            action=Action.FAIL,
            kinds=frozenset({Kind.RREF_FORK_REQUEST, Kind.RREF_USER_DELETE}),
            each=3,
        )
        assert drop == Rule(
            action=Action.DROP,
            moment=Moment.REPLY,
            kinds=frozenset({CALL}),
            to=frozenset({"w1", "w2"}),
            p=0.25,
            nth=2,
        )
        assert reset == Rule(action=Action.RESET, moment=Moment.RUNNING, times=5)
        assert parse_plan(str(plan)).rules == plan.rules

    @given(st.integers(), st.lists(rules, max_size=4))
    def test_a_plan_as_text_is_the_same_plan(self, seed: int, some: list[Rule]) -> None:
        """Proves FP-4."""
        plan = FaultPlan(seed, some)
        again = parse_plan(str(plan))
        assert (again.seed, again.rules) == (seed, tuple(some))
        assert str(again) == str(plan)

    @pytest.mark.parametrize("action", list(Action))
    def test_every_action_has_a_name(self, action: Action) -> None:
        (rule,) = parse_plan(str(Rule(action=action))).rules
        assert rule == dataclasses.replace(rule, action=action)

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("explode PYTHON_CALL", "'explode' is not an action; there are fail, drop, delay, "),
            ("drop PYTHON_CAL", "'PYTHON_CAL' is not a kind of message; there are PYTHON_CALL, "),
            ("drop REPLY", "'REPLY' is not a kind of message; there are PYTHON_CALL, "),
            ("drop PYTHON_CALL, REPLY", "'PYTHON_CALL,': kinds are joined by commas, without"),
            ("drop PYTHON_CALL RREF_UNREAD", "'RREF_UNREAD': kinds is given twice; several are"),
            ("drop to=w1 to=w2", "'to=w2': to is given twice; several are joined by commas"),
            ("drop p=0.1 p=0.2", "'p=0.2': p is given twice$"),
            ("reset reply running", "'running': moment is given twice$"),
            ("drop to=", "to= is for names of workers"),
            ("drop to=w1,", "to= is for names of workers"),
            (
                "drop often=3",
                "'often' is not an option; there are to, times, each, nth, p, seconds",
            ),
            ("drop times=x", "times 'x': must be a whole number"),
            ("drop p=10%", "p '10%': must be a number"),
            ("delay PYTHON_CALL", "delay needs seconds="),
            ("partition", "partition needs seconds="),
            ("seed", "must be `seed` and one number"),
            ("seed 1 2", "must be `seed` and one number"),
            ("seed x", "seed 'x': must be a whole number"),
            ("drop p=2", "p=2.0: must be from 0 to 1"),
        ],
    )
    def test_what_is_no_plan(self, line: str, said: str) -> None:
        """Proves FP-3."""
        with pytest.raises(UsageError, match=f"fault plan, line 2: '{line}': .*{said}"):
            parse_plan(f"drop\n{line}\n")

    def test_one_seed_is_enough(self) -> None:
        with pytest.raises(UsageError, match="line 2: 'seed 0': seed is given twice"):
            parse_plan("seed 0\nseed 0")

    def test_a_plan_is_a_text(self) -> None:
        with pytest.raises(UsageError, match="fault plan: None: must be a text"):
            parse_plan(None)  # type: ignore[arg-type]
