"""The rig of chaos: it starts real agents, hears them, and leaves nothing of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.plan import Phase
from tests.chaos.rig import MARK, Hang, Rig, carriers, strike
from tests.chaos.worker import TOTAL


def test_a_job_without_faults() -> None:
    with Rig("calm") as rig:
        agent = rig.start(1)
        rig.wait(lambda: len(rig.workers("work", rig.newest)) == 2, "work")
        agent.trace()
        # Itself, two workers and a daemon; all of them would be found if they were left.
        assert len(carriers(f"{MARK}={agent.token}")) == 4
        assert agent.traces.reaper is not None
        left = agent.traces.left()
        assert f"reaper {agent.traces.reaper}" in left
        assert sum("of the agent's mark" in one for one in left) == 3
        assert any("timer" in one for one in left)
        rig.finish()
        rig.wait(rig.ended, "the end", all_live=False)
        assert agent.code == 0
        assert agent.heard("left", leaks=[]) is not None
        assert agent.traces.left() == []
        done = rig.workers("done", rig.newest)
        assert sum(mark.value for mark in done.values()) == TOTAL


def test_what_does_not_come_is_a_hang_and_shows_the_stacks() -> None:
    with Rig("hang", timeout_s=0.0) as rig:
        agent = rig.start(1, phase=Phase.WAITING)
        rig.timeout_s = 60.0
        rig.wait(lambda: agent.heard("phase", phase=Phase.WAITING) is not None, "the phase")
        rig.timeout_s = 0.0
        with pytest.raises(Hang, match="waited for godot: it did not come") as raised:
            rig.wait(lambda: False, "godot")
        assert "chaos/agent.py" in str(raised.value)
        token = agent.token
    assert carriers(f"{MARK}={token}") == []


def test_an_agent_that_ends_too_early_is_a_hang() -> None:
    with Rig("early") as rig:
        rig.start(1, nproc_per_node=0)
        with pytest.raises(Hang, match="an agent has ended") as raised:
            rig.wait(lambda: False, "godot")
        assert "nproc_per_node 0" in str(raised.value)


def test_processes_are_found_by_their_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    item = f"CHAOS_TEST={os.getpid()}-{tmp_path}"
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict([item.split("=")]),
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert carriers(item) == [process.pid]
        assert strike(process.pid, 9)
        process.wait(20)
        assert carriers(item) == []
        assert not strike(process.pid, 0)
