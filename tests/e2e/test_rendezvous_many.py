"""Sixty-four nodes on one machine, each a process; and the story that the demonstration tells."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.rendezvous_nodes import built_in, met, nodes_at
from tests.e2e.reporting import TIMEOUT_S

NODES = 64
DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_sixty_four_nodes_meet_lose_their_leader_and_go_on(tmp_path: Path) -> None:
    with built_in(tmp_path) as place, nodes_at(place) as nodes:
        leader = nodes.lead(NODES)
        others = [nodes.start(NODES - 1, NODES) for _ in range(NODES - 1)]
        for node in others:
            node.order("next")
        met([leader, *others], 1)
        leader.kill()
        for node in others:
            assert f"{leader.host} is gone" in node.hear("RoundEnded", round=1)["reason"]
        for node in others:
            node.order("next")
        met(others, 2)
        others[-1].do("close", "done")
        for node in others:
            assert node.hear("RunEnded")["reason"] == "done"
            node.order("leave")
        for node in others:
            node.ended()
        assert [node.rounds() for node in others] == [[1, 2]] * len(others)


def test_the_demonstration_tells_its_story() -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()

    def places(pattern: str) -> list[int]:
        return [index for index, line in enumerate(lines) if re.search(pattern, line)]

    [refused], [browser] = places("stranger.*Refused"), places("browser: hung up on")
    [killed], [total] = places("rank 2 is killed with SIGKILL"), places("the sum is .* right$")
    first, second = places("rank . of 4 in round 1"), places("rank . of 4 in round 2")
    assert refused < browser < min(first)
    assert killed < min(second) < total
    for ranked in (first, second):
        assert sorted(re.findall(r"rank (\d)", "".join(lines[i] for i in ranked))) == [*"0123"]
    assert all(killed < over for over in places("round 1 is over: .* is gone"))
    assert "4 nodes ended well, 1 was killed" in lines[-1]
