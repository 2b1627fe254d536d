"""The report of failed workers: the cause first and whole, for people and for programs."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

from holdfast.launch import report
from holdfast.launch.report import as_json, as_text, workers_failed
from holdfast.process.outcome.failure import Failure
from holdfast.process.spec import Exit

TRACEBACK = """Traceback (most recent call last):
  File "/job/train.py", line 7, in <module>
    main()
ValueError: bad loss
"""

CAUSE = Failure(
    rank=3,
    local_rank=1,
    role="trainer",
    host="node-a",
    pid=77,
    exit=Exit(1),
    at=1_767_225_600.25,
    message="ValueError: bad loss",
    error_type="ValueError",
    traceback=TRACEBACK,
    error_file="/logs/3/error.json",
)
VICTIM = replace(
    CAUSE,
    rank=0,
    local_rank=0,
    host="node-b",
    pid=80,
    at=99.0,
    moment=CAUSE.at + 0.21,
    message="RuntimeError: Connection closed by peer [10.0.0.1]:4711\nmore",
    error_type="RuntimeError",
)
TERMINATED = replace(
    CAUSE, rank=1, pid=78, exit=Exit(-15), at=CAUSE.at + 1, message="killed by SIGTERM"
)


def test_the_first_cause_is_told_whole_and_the_others_in_a_line_each() -> None:
    text = as_text("train.py", "job-1", (CAUSE, VICTIM, TERMINATED), "no restart is left")
    assert text == (
        "train.py failed (run job-1): no restart is left\n"
        "\n"
        "First cause:\n"
        "  worker:     rank 3 (local rank 1, role trainer)\n"
        "  host:       node-a, pid 77\n"
        "  time:       2026-01-01T00:00:00.250Z\n"
        "  end:        exit code 1\n"
        "  error file: /logs/3/error.json\n"
        "\n"
        "  Traceback (most recent call last):\n"
        '    File "/job/train.py", line 7, in <module>\n'
        "      main()\n"
        "  ValueError: bad loss\n"
        "\n"
        "After it:\n"
        "  +0.210 s  rank 0 on node-b, pid 80: exit code 1: RuntimeError: Connection closed by peer"
        " [10.0.0.1]:4711 (it lost a peer)\n"
        "  +1.000 s  rank 1 on node-a, pid 78: killed by SIGTERM"
    )


def test_a_native_crash_shows_its_stack_and_its_hint() -> None:
    crash = replace(
        CAUSE,
        exit=Exit(-11),
        role="default",
        message="killed by SIGSEGV",
        traceback="",
        error_file="",
        hint="a crash in native code",
        stack='Fatal Python error: Segmentation fault\n  File "x.py", line 1 in f\n',
    )
    text = as_text("train.py", "job-1", (crash,))
    assert text == (
        "train.py failed (run job-1)\n"
        "\n"
        "First cause:\n"
        "  worker:     rank 3 (local rank 1)\n"
        "  host:       node-a, pid 77\n"
        "  time:       2026-01-01T00:00:00.250Z\n"
        "  end:        killed by SIGSEGV\n"
        "  hint:       a crash in native code\n"
        "\n"
        "  Python stack at its end:\n"
        "  Fatal Python error: Segmentation fault\n"
        '    File "x.py", line 1 in f'
    )


def test_a_message_that_the_traceback_lacks_is_told_too() -> None:
    text = as_text("f", "r", (replace(CAUSE, message="a summary"),))
    assert text.endswith("  ValueError: bad loss\n  a summary")
    assert "a summary" in as_text("f", "r", (replace(CAUSE, message="a summary", traceback=""),))


def test_a_first_one_that_lost_a_peer_is_not_called_sure() -> None:
    text = as_text("f", "r", (VICTIM, CAUSE))
    assert text.endswith(report._NOT_SURE)
    assert report._NOT_SURE not in as_text("f", "r", (VICTIM,))
    assert report._NOT_SURE not in as_text("f", "r", (CAUSE, VICTIM))


def test_a_thousand_failures_make_no_endless_report() -> None:
    huge = replace(CAUSE, traceback="x" * 10**6, message="y" * 10**6, stack="z" * 10**6)
    text = as_text("f", "r", (huge, *[huge] * 999), "why\nand so on")
    assert text.splitlines()[0] == "f failed (run r): why"
    assert text.endswith("  and 967 more")
    assert len(text) < 40_000


def test_a_job_can_fail_without_a_known_failure() -> None:
    assert as_text("f", "r", (), "node-b failed") == "f failed (run r): node-b failed"
    assert as_json("f", "r", (), "node-b failed", 1)["failures"] == []


def test_the_error_carries_the_report_the_failures_and_the_code() -> None:
    killed = replace(CAUSE, exit=Exit(-9))
    error = workers_failed("train.py", "job-1", [killed, VICTIM], "no restart is left")
    assert str(error) == as_text("train.py", "job-1", (killed, VICTIM), "no restart is left")
    assert error.failures == (killed, VICTIM)
    assert (error.name, error.exit_code) == ("train.py", 137)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.failures) == (str(error), error.failures)


def test_programs_get_every_field() -> None:
    found: dict[str, Any] = json.loads(
        json.dumps(as_json("train.py", "job-1", (CAUSE, TERMINATED), "no restart is left", 69))
    )
    failures = found.pop("failures")
    assert found == {
        "name": "train.py",
        "run": "job-1",
        "reason": "no restart is left",
        "exit_code": 69,
        "machines": [],
    }
    assert failures[0] == {
        "rank": 3,
        "local_rank": 1,
        "role": "trainer",
        "host": "node-a",
        "pid": 77,
        "exit_code": 1,
        "exit": "exit code 1",
        "time": "2026-01-01T00:00:00.250Z",
        "timestamp": 1_767_225_600.25,
        "after_s": 0.0,
        "message": "ValueError: bad loss",
        "type": "ValueError",
        "traceback": TRACEBACK,
        "stack": "",
        "hint": "",
        "error_file": "/logs/3/error.json",
        "kind": "",
        "step": -1,
        "repeated": 0,
    }
    assert failures[1]["after_s"] == 1.0
    assert failures[1]["exit_code"] == -15
    for name in (*found, *failures[0]):
        assert name in (report.__doc__ or ""), f"{name} is not told in the docstring"


def test_an_exception_without_a_text_is_told_once() -> None:
    told = 'Traceback (most recent call last):\n  File "/job/train.py", line 2\nAssertionError\n'
    first = replace(CAUSE, traceback=told, message="AssertionError: ")
    assert as_text("train.py", "job-1", (first,)).count("AssertionError") == 1


def test_a_syntax_error_is_told_once() -> None:
    told = (
        '  File "/job/train.py", line 2\n    for in y:\n        ^^\nSyntaxError: invalid syntax\n'
    )
    message = "SyntaxError: invalid syntax (train.py, line 2)"
    text = as_text("train.py", "job-1", (replace(CAUSE, traceback=told, message=message),))
    assert text.count("SyntaxError") == 1
    other = replace(CAUSE, traceback=told, message="SyntaxError: another one")
    assert as_text("train.py", "job-1", (other,)).count("SyntaxError") == 2


def test_a_report_is_laid_out_for_people_but_for_its_machines() -> None:
    machines: list[dict[str, object]] = [{"machine": "agent", "steps": [{"now": 1.0}]}] * 2
    for some in ([], machines):
        told = as_json("train.py", "job-1", (CAUSE,), "no restart is left", 1, some)
        text = report.dump(told)
        assert json.loads(text) == told
        assert text.count('"agent"') == len(some)
        assert text.count("\n") == report.dump(told | {"machines": []}).count("\n") + len(some)
        assert text.endswith("\n}\n")
