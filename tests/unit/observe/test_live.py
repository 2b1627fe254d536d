"""What a person sees of a job, on a real terminal or anywhere else."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from holdfast import env
from holdfast.clock import iso_time
from holdfast.observe.lines import JobView, NodeView
from holdfast.observe.live import Live, is_for_us
from holdfast.testing.clock import ManualClock
from tests.unit.observe.terminal import Screen, Terminal


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal(10, 80)
    yield terminal
    terminal.close()


def node(n: int, state: str = "running", **more: object) -> NodeView:
    return NodeView(host=f"host{n}", state=state, **more)  # type: ignore[arg-type]


def job(count: int, state: str = "running") -> JobView:
    return JobView(node(0, state), count - 1)


CLOCK = ManualClock()
WHEN = iso_time(CLOCK.wall())


def test_lines_stay_while_the_rest_scrolls(terminal: Terminal) -> None:
    terminal.worker_prints("before")
    live = Live(terminal.stream, terminal=True, clock=CLOCK)
    live.show(job(2, "joining"))
    joining = f"holdfast: {WHEN}  host0  joining"
    assert terminal.look() == ["before", joining, *[""] * 6, "host0  joining", "and 1 more node"]
    terminal.worker_prints(*(f"line {n}" for n in range(20)))
    live.show(job(2))
    terminal.worker_prints("last")
    shown = terminal.look()
    running = f"holdfast: {WHEN}  host0  running"
    assert shown[:8] == [*(f"line {n}" for n in range(15, 20)), running, "last", ""]
    assert shown[8:] == ["host0  running", "and 1 more node"]
    live.close()
    terminal.worker_prints("after")
    assert terminal.look()[5:] == [running, "last", "after", "", ""]
    assert terminal.screen.region == (0, 9)
    assert terminal.screen.wraps


def test_only_what_is_waited_for_is_written_over(terminal: Terminal) -> None:
    """What happened stays: the reason of a restart is there when the next round runs."""
    with Live(terminal.stream, terminal=True, clock=CLOCK) as live:
        live.show(JobView(node(0, "stopping", round=1, reason="rank 3 failed")))
        live.show(JobView(node(0, "joining", reason="rank 3 failed; 2 restarts left")))
        for left_s in range(9, 0, -1):
            live.show(
                JobView(
                    node(
                        *(0, "joining"),
                        reason="rank 3 failed; 2 restarts left",
                        waiting=f"have {9 - left_s} of 9",
                        left_s=float(left_s),
                    )
                )
            )
        live.show(JobView(node(0, round=2, reason="again")))
        assert terminal.look()[:4] == [
            f"holdfast: {WHEN}  host0  stopping  round 1  rank 3 failed",
            f"holdfast: {WHEN}  host0  joining  2 restarts left",
            f"holdfast: {WHEN}  host0  running  round 2  again",
            "",
        ]
    assert "have 8 of 9; rank 3 failed; 2 restarts left, 1 s left" in terminal.said


def test_more_and_fewer_nodes(terminal: Terminal) -> None:
    terminal.worker_prints(*(f"line {n}" for n in range(30)))
    with Live(terminal.stream, terminal=True) as live:
        live.show(job(1))
        terminal.worker_prints("line 30")
        live.show(job(3))
        assert terminal.look()[6:] == ["line 30", "", "host0  running", "and 2 more nodes"]
        live.show(job(2))
        assert terminal.look()[7:] == ["", "host0  running", "and 1 more node"]
        assert terminal.screen.region == (0, 7)
        live.show(job(9))
        assert terminal.look()[8:] == ["host0  running", "and 8 more nodes"]
        terminal.worker_prints("x")
        assert terminal.look()[8:] == ["host0  running", "and 8 more nodes"]


def test_a_line_that_is_half_written_goes_on_where_it_was(terminal: Terminal) -> None:
    with Live(terminal.stream, terminal=True) as live:
        live.show(job(1))
        terminal.stream.write("half")
        live.show(job(1))
        terminal.stream.write(" and")
        live.show(job(2))
        terminal.worker_prints(" whole")
        assert terminal.look()[1] == "half and whole"


def test_a_long_line_is_cut(terminal: Terminal) -> None:
    with Live(terminal.stream, terminal=True, color=False) as live:
        live.show(JobView(node(0, reason="x" * 200)))
        assert terminal.look()[9] == f"host0  running  {'x' * 64}"
    assert "\x1b[1m" not in terminal.said


def test_another_size(terminal: Terminal) -> None:
    with Live(terminal.stream, terminal=True, clock=CLOCK) as live:
        live.show(job(1))
        terminal.look()
        terminal.resize(20, 60)
        live.show(job(1))
        assert terminal.look()[19] == "host0  running"
        assert terminal.screen.region == (0, 18)
        terminal.resize(4, 60)  # too small: plain lines from now on
        live.show(job(1, "stopping"))
        assert terminal.look()[3:] == [""]
        assert f"holdfast: {WHEN}  host0  stopping" in terminal.look()
        assert terminal.screen.region == (0, 3)


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (7, 80), (24, 39)])
def test_a_tiny_terminal_gets_plain_lines(rows: int, columns: int) -> None:
    terminal = Terminal(rows, columns)
    terminal.screen = Screen(24, 80)
    with Live(terminal.stream, terminal=True, clock=CLOCK) as live:
        live.show(job(2))
    assert terminal.look()[:2] == [f"holdfast: {WHEN}  host0  running", ""]
    terminal.close()


def test_plain_lines_are_printed_when_something_changed() -> None:
    stream = io.StringIO()
    with Live(stream, terminal=False, clock=CLOCK) as live:
        live.show(JobView(node(0, "joining")))
        live.show(JobView(node(0, "joining", ranks=(0, 1), world_size=2)))
        live.show(JobView(node(0, round=1), 1))
        live.show(JobView(node(0, "ended", round=1, reason="why")))
    assert stream.getvalue().splitlines() == [
        f"holdfast: {WHEN}  host0  joining",
        f"holdfast: {WHEN}  host0  running  round 1",
    ]


def test_a_stream_without_a_reader_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    with Live(stream, terminal=False) as live:
        live.show(job(1))
        live.show(job(1, "stopping"))
    with pytest.raises(BrokenPipeError):
        stream.close()
    live.show(job(1, "again"))  # to a stream that is closed
    Live(stream, terminal=True).show(job(1))


# Whose terminal it is. Asked is a process of its own: a terminal has one group in its foreground.

ASK = """
import fcntl, os, sys, termios
from holdfast.observe.live import is_for_us
if sys.argv[1:] == ["lead"]:
    os.setsid()
    fcntl.ioctl(2, termios.TIOCSCTTY, 0)
print(is_for_us(sys.stderr, dict(os.environ)))
"""


# Holdfast need not be installed where these tests run.
PATH = os.pathsep.join(filter(None, sys.path))


def ask(stream: TextIO, *words: str, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", ASK, *words],
        stdout=subprocess.PIPE,
        stderr=stream,
        env={"TERM": "xterm", "PYTHONPATH": PATH, **variables},
        check=True,
        timeout=60,
        text=True,
    ).stdout.strip()


def test_the_terminal_of_the_group_in_the_foreground_is_ours(terminal: Terminal) -> None:
    assert ask(terminal.stream, "lead") == "True"
    assert ask(terminal.stream) == "False"  # one that others are controlled from


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": ""}, {env.GROUP: "a job's"}])
def test_some_terminals_are_not_used(terminal: Terminal, variables: dict[str, str]) -> None:
    assert ask(terminal.stream, "lead", **variables) == "False"


def test_other_streams_are_no_terminals() -> None:
    assert not is_for_us(io.StringIO(), {"TERM": "xterm"})
    with open(os.devnull, "w") as nowhere:
        assert not is_for_us(nowhere, {"TERM": "xterm"})
        assert not is_for_us(nowhere, {})
