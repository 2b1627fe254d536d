"""`holdfast replay`: real reports, damaged ones, and a machine that was changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__
from holdfast.agent.inputs import AGENT, AgentBegins, Joined
from holdfast.agent.machine import AgentMachine, Terms
from holdfast.agent.policy import RestartBudget
from holdfast.cli import replay
from holdfast.launch.recordings import write_machines
from holdfast.observe.recorder import Recorder
from tests.unit.agent.stories import failed, failure, place
from tests.unit.cli.conftest import Run


def written() -> dict[str, Any]:
    recorder: Recorder[Any, Any] = Recorder(AGENT, AgentMachine(Terms(budget=RestartBudget(1))))
    recorder.step(AgentBegins(), 100.0)
    recorder.step(Joined(place()), 100.5)
    recorder.step(failed(failure()), 101.25)
    return {"machines": write_machines([recorder.recording()])}


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(written()))
    return path


STOPS = "stops its workers by SIGTERM within 30 s: rank 0 on a failed (exit code 1): boom"
STEPS = (
    ("100.000", "the agent begins", "asks for a round (waiting for a round)"),
    (
        "100.500",
        "joined round 1, as node 0 of 2, 2 workers",
        "starts workers in round 1, as node 0 of 2, after 0 failures (node 0 of 2 in round 1)",
    ),
    (
        "101.250",
        "worker 0 (pid 100) ended: exit code 1, a failure at 10.000",
        f"counts the failure; tells the other nodes its failures: 0; {STOPS}",
    ),
)
LINES = [
    "agent: 3 steps, recorded by the same code",
    *(f"     {now}  {came} -> {decided}" for now, came, decided in STEPS),
    "agent: every decision is the recorded one",
]


def test_a_report_is_told_step_by_step(run: Run, report: Path) -> None:
    assert run("replay", str(report)) == (0, "\n".join([*LINES, ""]), "")


def test_a_changed_machine_is_noticed(
    run: Run, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentMachine, "_publish", lambda self: None)
    code, out, err = run("replay", str(report))
    assert (code, err) == (1, "")
    *story, decided, differs, recorded = out.splitlines()
    assert story == LINES[:3]
    assert differs == "agent: step 3 of 3 differs; recorded was:"
    assert "counts the failure; stops its workers" in decided
    assert "counts the failure; tells the other nodes its failures: 0; stops" in recorded


def test_a_report_of_other_code_is_named(run: Run, tmp_path: Path) -> None:
    plain = written()
    plain["machines"][0] |= {"version": "0.0.1\n", "code": "abc", "dropped": 7}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(plain))
    code, out, _ = run("replay", str(path))
    assert code == 0
    assert out.splitlines()[0] == (
        "agent: 3 steps, 7 before them were not kept, recorded by other code: holdfast 0.0.1\\n, "
        f"this is {__version__}"
    )


def test_what_was_not_recorded_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"machines": [{"machine": "rendezvous", "left_out": "too big"}]}))
    assert run("replay", str(path)) == (0, "rendezvous: not recorded: too big\n", "")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not JSON: Expecting value"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"machines": [', "not JSON"),
        (b"{}", "it holds no steps of machines, as the report of a failed job does"),
        (b'{"machines": [{"machine": "agent"}]}', "is no recording: it must have code"),
    ],
    ids=["empty", "bytes", "deep", "cut", "none", "part"],
)
def test_a_damaged_file_is_one_line(run: Run, tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    code, out, err = run("replay", str(path))
    assert (code, out) == (2, "")
    assert re.fullmatch(r"holdfast: report '.*report.json': .*\n", err)
    assert told in err


@pytest.mark.parametrize("at", range(5, 100, 10))
def test_a_file_that_is_cut_off_is_one_line(run: Run, report: Path, at: int) -> None:
    whole = report.read_bytes()
    report.write_bytes(whole[: len(whole) * at // 100])
    code, out, err = run("replay", str(report))
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_no_file_and_too_large_a_file(
    run: Run, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = report.with_name("nothing")
    assert run("replay", str(nothing)) == (
        *(2, ""),
        f"holdfast: report '{nothing}': no such file or directory\n",
    )
    size = report.stat().st_size
    monkeypatch.setattr(replay, "FILE_BYTES_MAX", size)
    assert run("replay", str(report))[0] == 0
    monkeypatch.setattr(replay, "FILE_BYTES_MAX", size - 1)
    assert run("replay", str(report)) == (
        *(2, ""),
        f"holdfast: report '{report}': it is larger than {size - 1} bytes\n",
    )
