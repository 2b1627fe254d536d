"""The machines of a job are written into its report, and read again."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from holdfast import __version__
from holdfast.agent.inputs import AGENT, AgentBegins, JoinFailed
from holdfast.agent.machine import AgentMachine, Terms
from holdfast.agent.policy import RestartBudget
from holdfast.agent.story import AGENT_STORY
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.ids import NodeId, RunId
from holdfast.launch.recordings import LeftOut, code_of, read_machines, write_machines
from holdfast.observe.recorder import Recorder
from holdfast.observe.replay import LoadedRecording
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.effects import Effect
from holdfast.rendezvous.inputs import NODE, NodeBegins, NodeInput
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.model import Announcement, Keys, Phase
from holdfast.rendezvous.ranks import RankPolicy, sticky_ranks
from holdfast.rendezvous.story import NODE_STORY

TERMS = Terms(budget=RestartBudget(1))


def agent() -> Recorder[Any, Any]:
    recorder: Recorder[Any, Any] = Recorder(AGENT, AgentMachine(TERMS))
    recorder.step(AgentBegins(), 1.0)
    recorder.step(JoinFailed(StoreUnavailable("no store")), 2.0)
    return recorder


def node(rank: RankPolicy = sticky_ranks) -> Recorder[NodeInput, Effect]:
    me = Announcement(NodeId("a"), "host-a", "127.0.0.1", 1, Phase.WAITING, 0, None, "")
    machine = NodeMachine(me, Keys(RunId("job")), Rules(min_nodes=1, max_nodes=1), rank)
    recorder: Recorder[NodeInput, Effect] = Recorder(NODE, machine)
    recorder.step(NodeBegins(), 1.0)
    return recorder


def through_a_file(*recorders: Recorder[Any, Any]) -> list[LoadedRecording | LeftOut]:
    machines = write_machines(recorder.recording() for recorder in recorders)
    return read_machines(json.loads(json.dumps({"machines": machines})))


def test_both_machines_come_back_and_decide_the_same() -> None:
    found = through_a_file(agent(), node())
    assert [type(one) for one in found] == [LoadedRecording] * 2
    for one, story, steps in zip(found, (AGENT_STORY, NODE_STORY), (2, 1), strict=True):
        assert isinstance(one, LoadedRecording)
        assert one.replayable is story
        assert (one.version, one.code) == (__version__, code_of(story))
        assert [step.recorded for step in one.replay()] == [None] * steps


def test_a_machine_that_cannot_be_written_says_why() -> None:
    """OB-9: the user's own policy of ranks is not known to another process."""
    found = through_a_file(node(lambda chosen, previous: chosen))
    [left_out] = found
    assert isinstance(left_out, LeftOut)
    assert left_out.machine == "rendezvous"
    assert "a function cannot be recorded" in left_out.why


@pytest.mark.parametrize("report", [5, [], {}, {"machines": []}, {"machines": {}}])
def test_a_report_without_machines_is_refused(report: object) -> None:
    with pytest.raises(UsageError, match="it holds no steps of machines"):
        read_machines(report)


def test_what_is_no_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="is no recording"):
        read_machines({"machines": [5]})


def test_the_fingerprint_is_that_of_the_files_that_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_of(AGENT_STORY), code_of(NODE_STORY)
    assert before == (code_of(AGENT_STORY), code_of(NODE_STORY))
    assert before[0] != before[1]
    policy: Any = import_module("holdfast.agent.policy")
    loader = policy.__spec__.loader
    monkeypatch.setattr(loader, "get_source", lambda name: "other code", raising=False)
    assert (code_of(AGENT_STORY) == before[0], code_of(NODE_STORY) == before[1]) == (False, True)


def test_a_package_without_sources_has_a_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    policy: Any = import_module("holdfast.agent.policy")
    loader = policy.__spec__.loader
    monkeypatch.setattr(loader, "get_source", lambda name: None, raising=False)
    assert code_of(AGENT_STORY)
