"""What the page shows, and what of it has changed."""

from __future__ import annotations

from typing import Any

from holdfast.page.view import EVENTS_SHOWN, ROUNDS_SHOWN, changes, page_state, sse


def agent(node: int | None = 0, **more: Any) -> dict[str, Any]:
    workers = [
        {"rank": 2, "role": "reader", "pid": 8, "running": True},
        {"rank": 3, "role": "reader", "pid": None, "running": False},
        {"rank": 4, "role": "reader", "pid": None, "running": False},
    ]
    failed = {"event": "WorkerFailed", "round": 2, "rank": 3}
    earlier = {"event": "WorkerFailed", "round": 1, "rank": 4}
    told: dict[str, Any] = {
        "run": "a",
        "host": "vm",
        "pid": 70 + (node or 0),
        "started_at": 100.0,
        "state": "running",
        "reason": "why",
        "round": 2,
        "node": node,
        "nodes": 3,
        "world_size": 6,
        "restarts": {"allowed": 3, "used": 1, "causes": [["rank 3: ValueError", 1]]},
        "workers": workers if node == 0 else [],
        "events": [failed, earlier],
        "recovered_s": 1.5,
        "logs": "/l",
    }
    return told | more


def event(number: int, kind: str, time: float, **more: Any) -> dict[str, Any]:
    base = {"number": number, "event": kind, "time": time, "host": "vm", "agent": 70, "run": "a"}
    return base | more


def started(number: int, round_: int, time: float) -> dict[str, Any]:
    return event(number, "WorkersStarted", time, round=round_, world_size=4)


def test_nodes_and_workers() -> None:
    state = page_state([agent(), agent(1, state="joining", round=0)], ["no answer: x"], [])
    assert state["nodes"] == {
        "vm 70": {
            "node": 0,
            "host": "vm",
            "pid": 70,
            "state": "running",
            "why": "why",
            "workers": [
                [2, "reader", 8, "running"],
                [3, "reader", None, "failed"],
                [4, "reader", None, "ended"],
            ],
        },
        "vm 71": {
            "node": 1,
            "host": "vm",
            "pid": 71,
            "state": "joining",
            "why": "why",
            "workers": [],
        },
    }
    job = state["job"]
    assert (job["run"], job["restarts_used"], job["started_at"]) == ("a", 1, 100.0)
    assert (job["causes"], job["recovered_s"]) == ([["rank 3: ValueError", 1]], 1.5)
    assert (job["logs"], job["ending"]) == (True, None)
    assert "age_s" not in job  # it would change all the time
    assert (state["missing"], state["elsewhere"]) == (["no answer: x"], 2)


def test_an_agent_of_another_version_may_tell_less() -> None:
    state = page_state([{}], [], [{}])
    assert state["nodes"]["None None"]["workers"] == []
    assert (state["elsewhere"], state["rounds"]) == (0, [])
    assert state["events"][0]["event"] == "?"


def test_events_are_in_order_and_the_last_ones() -> None:
    events = [event(n, "X", float(-n), text=f"run a: {n}") for n in range(EVENTS_SHOWN + 1)]
    shown = page_state([agent()], [], events)["events"]
    assert len(shown) == EVENTS_SHOWN
    assert shown[-1] == {"key": "vm 70 0", "time": 0.0, "host": "vm", "event": "X", "text": "0"}


def rounds(*events: dict[str, Any]) -> list[list[Any]]:
    found: list[list[Any]] = page_state([agent()], [], events)["rounds"]
    return found


def test_rounds_have_a_begin_an_end_and_a_reason() -> None:
    assert rounds(
        started(1, 1, 10.0),
        started(2, 1, 11.0),  # of another node: the same round
        event(3, "WorkersStopping", 20.0, round=1, reason="rank 3 failed"),
        event(4, "WorkersStopping", 21.0, round=1, reason="another reason"),
        started(5, 2, 22.0),
        event(6, "WorkersStopping", 23.0, round=9, reason="of a round that is not known"),
    ) == [[1, 10.0, 20.0, 4, "rank 3 failed"], [2, 22.0, None, 4, ""]]


def test_a_round_of_which_no_end_was_told_ends_with_the_next_one_or_the_job() -> None:
    found = rounds(
        started(1, 1, 10.0), started(2, 2, 22.0), event(3, "JobFailed", 30.0, reason="over")
    )
    assert found == [[1, 10.0, 22.0, 4, ""], [2, 22.0, 30.0, 4, "over"]]
    done = rounds(started(1, 1, 10.0), event(2, "WorkersFinished", 12.0, round=1))
    assert done == [[1, 10.0, 12.0, 4, "finished"]]


def test_the_number_of_rounds_has_a_limit() -> None:
    found = rounds(*(started(n, n, float(n)) for n in range(1, ROUNDS_SHOWN + 2)))
    assert (len(found), found[0][0]) == (ROUNDS_SHOWN, 2)


def test_only_what_has_changed_is_sent() -> None:
    one, other = agent(), agent(1)
    before = page_state([one, other], [], [event(1, "X", 1.0)])
    assert changes(before, page_state([one, other], [], [event(1, "X", 1.0)])) == {}
    busy = agent(1, reason="other")
    now = page_state([one, busy], [], [event(1, "X", 1.0), event(2, "Y", 2.0)])
    found = changes(before, now)
    assert set(found) == {"nodes", "events"}
    assert list(found["nodes"]) == ["vm 71"]
    assert [each["event"] for each in found["events"]] == ["Y"]
    found = changes(before, page_state([one], ["no answer"], [event(1, "X", 1.0)]))
    assert found["gone"] == ["vm 71"]
    assert (found["missing"], found["elsewhere"]) == (["no answer"], 2)
    assert "job" in found  # which counts its agents


def test_a_server_sent_event() -> None:
    assert sse("change", '{"a": 1}') == b'event: change\ndata: {"a": 1}\n\n'
