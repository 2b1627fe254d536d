"""What went wrong, from any bytes that a worker or a peer may leave; and which came first."""

from __future__ import annotations

import json
import math
import pickle
import string
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import PeerViolation
from holdfast.process.outcome.failure import (
    CLOCKS_AGREE_S,
    MESSAGE_CHARS_MAX,
    TRACEBACK_CHARS_MAX,
    Failure,
    clip,
    dump_json,
    first_cause,
    hint_for,
    load_json,
    lost_a_peer,
    make_error_data,
    parse_error_data,
    reply_data,
    visible,
)
from holdfast.process.spec import Exit

NOW = 1_700_000_000.25

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NEARLY = st.fixed_dictionaries(
    {"message": JSON | st.fixed_dictionaries({}, optional={"message": JSON, "extraInfo": JSON})},
    optional={"timestamp": JSON, "extraInfo": JSON},
)


def failure(**changes: Any) -> Failure:
    whole = Failure(
        rank=3,
        local_rank=1,
        role="trainer",
        host="node-a",
        pid=77,
        exit=Exit(1),
        at=NOW,
        message="ValueError: bad",
        error_type="ValueError",
        traceback="Traceback …\nValueError: bad\n",
        stack="Thread 1",
        hint="a hint",
        error_file="/logs/error.json",
        error_data={"message": {"message": "ValueError: bad", "extraInfo": {"timestamp": "1"}}},
    )
    return replace(whole, **changes)


# Error files.


def test_both_forms_of_torchruns_format_are_read() -> None:
    short = parse_error_data(b'{"message": "it broke", "timestamp": 17}')
    assert (short.message, short.traceback, short.timestamp) == ("it broke", "", 17)
    extra = {"py_callstack": "Traceback", "timestamp": "1700000000"}
    long = parse_error_data(
        json.dumps({"message": {"message": "E: x", "errorCode": 5, "extraInfo": extra}}).encode()
    )
    assert (long.message, long.traceback, long.timestamp) == ("E: x", "Traceback", 1_700_000_000)
    assert long.moment is None
    assert long.error_type == ""
    assert long.data["message"]["errorCode"] == 5


def test_what_we_write_is_read_again() -> None:
    data = make_error_data(KeyError("k"), "Traceback (most…", NOW, host="h", rank=2)
    found = parse_error_data(dump_json(data))
    assert found.message == "KeyError: 'k'"
    assert found.error_type == "KeyError"
    assert found.traceback == "Traceback (most…"
    assert (found.timestamp, found.moment) == (int(NOW), NOW)
    assert found.data == data
    assert data["message"]["extraInfo"]["host"] == "h"
    assert data["message"]["extraInfo"]["rank"] == 2


def test_a_class_is_told_with_its_module_and_a_text_that_raises_does_not_hurt() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    told = make_error_data(Mute(), "", NOW)["message"]
    assert told["message"] == "Mute: (no text: its str() raises)"
    assert told["extraInfo"]["type"] == f"{__name__}.{Mute.__qualname__}"


def test_what_we_write_is_never_larger_than_what_we_read() -> None:
    for char in ("x", "\0", "\x1b", "é", "\U0001f980", "\ud800"):
        data = make_error_data(ValueError(char * 10**6), char * 10**6, NOW)
        assert len(dump_json(data)) < 1 << 20


@pytest.mark.parametrize(
    ("extra", "timestamp"),
    [
        ({"timestamp": "17.9"}, 17),
        ({"timestamp": 17.9}, 17),
        ({"timestamp": "soon"}, None),
        ({"timestamp": "1" * 33}, None),
        ({"timestamp": ""}, None),
        ({"timestamp": True}, None),
        ({"timestamp": 0}, None),
        ({"timestamp": -5}, None),
        ({"timestamp": 10**400}, None),
        ({"timestamp": "nan"}, None),
        ({"timestamp": "inf"}, None),
        ({"timestamp": 1_700_000_000_000}, None),
        ({"timestamp": [17]}, None),
        ([], None),
        (None, None),
        ("text", None),
    ],
)
def test_times_that_make_no_sense_are_none(extra: object, timestamp: int | None) -> None:
    data = json.dumps({"message": {"message": "m", "extraInfo": extra}}).encode()
    assert parse_error_data(data).timestamp == timestamp


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (None, ""),
        (5, "5"),
        (["a", {"b": 1}], '["a",{"b":1}]'),
        ({}, ""),
        ({"message": {"deep": [1]}}, '{"deep":[1]}'),
    ],
)
def test_a_message_that_is_no_text_is_shown_as_it_is(message: object, text: str) -> None:
    assert parse_error_data(json.dumps({"message": message}).encode()).message == text


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"message": "x', "not JSON"),
        (b"[]", "not an object"),
        (b'"text"', "not an object"),
        (b'{"error": 1}', "not an object"),
        (b"[" * 100_000, "nested deeper than 64"),
        (b'{"message":' * 100_000, "nested deeper than 64"),
        (b'{"message": ' + b"1" * 10_000 + b"}", "a number is too long"),
        (b"\x80\x04\x95pickle", "not JSON"),
    ],
)
def test_what_is_no_error_file_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(PeerViolation, match=reason):
        parse_error_data(data)


def test_depth_is_checked_before_parsing_and_brackets_in_strings_do_not_count() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)  # a program may; a parser that trusts it would crash the process
    try:
        with pytest.raises(PeerViolation, match="nested deeper"):
            load_json(b"[" * 10**6)
    finally:
        sys.setrecursionlimit(limit)
    text = '[{"\\' * 1000
    assert load_json(dump_json({"message": text})) == {"message": text}
    assert load_json(b"[" * 64 + b"]" * 64) is not None


def test_an_unclosed_string_full_of_quotes_takes_no_longer_than_it_is_long() -> None:
    with pytest.raises(PeerViolation, match="not JSON"):
        load_json(b'{"message": "' + b'\\"' * 500_000)


def test_numbers_that_json_does_not_have_become_text() -> None:
    found = load_json(b'{"a": NaN, "b": -Infinity, "c": 1e999, "d": 1.5}')
    assert found == {"a": "NaN", "b": "-Infinity", "c": "1e999", "d": 1.5}


def test_bad_utf8_and_half_characters_are_survived() -> None:
    found = parse_error_data(b'{"message": "caf\xe9 \\ud800 x"}')
    assert found.message == "caf\N{REPLACEMENT CHARACTER} \\ud800 x"
    assert found.message.encode()
    assert load_json(dump_json(found.data)) == found.data


def test_what_moves_a_cursor_is_shown_instead() -> None:
    sly = "\x1b[2J\x9b1A\rgone\0\x7f\u202eevil"
    shown = visible(sly)
    assert shown == "\\x1b[2J\\x9b1A\\rgone\\x00\\x7f\\u202eevil"
    assert visible(shown) == shown
    assert visible("a\r\nb\tc\n") == "a\nb\tc\n"
    found = parse_error_data(
        dump_json({"message": {"message": sly, "extraInfo": {"py_callstack": sly, "type": sly}}})
    )
    assert found.message == found.traceback == found.error_type == shown
    assert found.data["message"]["message"] == sly


def test_long_texts_keep_both_ends() -> None:
    text = "begin" + "x" * 10_000 + "end"
    short = clip(text, 200)
    assert len(short) == 200
    assert short.startswith("begin")
    assert short.endswith("end")
    assert "left out" in short
    assert clip(text, len(text)) == text
    found = parse_error_data(
        dump_json({"message": {"message": text * 9, "extraInfo": {"py_callstack": "\0" * 900_000}}})
    )
    assert len(found.message) == MESSAGE_CHARS_MAX
    assert len(found.traceback) == TRACEBACK_CHARS_MAX


@given(st.binary() | st.text(string.printable).map(str.encode) | NEARLY.map(dump_json))
@example(b'{"message": {"message": "m", "extraInfo": {"timestamp": 1e400}}}')
def test_any_bytes_give_a_report_or_the_declared_error(data: bytes) -> None:
    try:
        found = parse_error_data(data)
    except PeerViolation:
        return
    for text in (found.message, found.traceback, found.error_type):
        assert visible(text) == text
        assert text.encode().decode() == text
    assert load_json(dump_json(found.data)) == found.data
    pickle.dumps(found)


@given(NEARLY.map(dump_json), st.data())
def test_any_damage_to_an_error_file_is_survived(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data)))
    damaged = (
        data[:at] + draw.draw(st.binary(max_size=4)) + data[at + draw.draw(st.integers(0, 3)) :]
    )
    for part in (data[:at], damaged):
        try:
            parse_error_data(part)
        except PeerViolation:
            pass


# Between nodes.


def tell(told: Failure, *, sent: float, received: float) -> Failure:
    return Failure.from_json(json.loads(json.dumps(told.to_json(sent))), received)


def test_a_failure_travels_whole() -> None:
    told = failure()
    assert tell(told, sent=NOW + 1, received=NOW + 1.1) == replace(told, moment=NOW)
    bare = failure(error_data=None, stack="", exit=Exit(-9))
    assert tell(bare, sent=NOW, received=NOW) == replace(bare, moment=NOW)


def test_a_wrong_clock_of_the_other_host_does_not_count() -> None:
    hour = 3600.0
    told = tell(failure(at=NOW - hour), sent=NOW - hour + 0.5, received=NOW + 0.6)
    assert told.at == NOW - hour
    assert told.when == pytest.approx(NOW + 0.1)
    ahead = tell(failure(at=NOW + hour), sent=NOW + hour, received=NOW)
    assert ahead.when == NOW


def test_clocks_that_agree_are_believed_so_that_every_node_finds_the_same_order() -> None:
    cause = failure(rank=0, at=NOW)
    victim = failure(rank=1, at=NOW + 0.002, host="node-b")
    told = tell(cause, sent=NOW + 0.05, received=NOW + CLOCKS_AGREE_S / 2)
    assert told.when == NOW
    assert [f.rank for f in first_cause([victim, told])] == [0, 1]


def test_a_clock_that_was_set_back_makes_no_negative_age() -> None:
    assert failure(at=NOW).to_json(NOW - 60)["age_s"] == 0


def test_what_is_told_is_small_however_large_the_failure_is() -> None:
    large = failure(
        message="m" * 10**6,
        traceback="t" * 10**6,
        stack="s" * 10**6,
        hint="h" * 10**6,
        error_data={"message": "x" * 10**6},
    )
    told = large.to_json(NOW)
    assert len(dump_json(told)) < 32 * 1024
    again = Failure.from_json(told, NOW)
    assert again.error_data is None
    assert again.message.startswith("mmm")


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", -1),
        ("rank", True),
        ("rank", 1.0),
        ("rank", 1 << 31),
        ("local_rank", "0"),
        ("pid", None),
        ("exit", "1"),
        ("exit", 1 << 40),
        ("at", "now"),
        ("at", math.nan),
        ("at", math.inf),
        ("at", -1),
        ("at", True),
        ("age_s", -0.1),
        ("age_s", None),
        ("role", 5),
        ("host", "h" * 1025),
        ("message", ["m"]),
        ("message", "m" * 2049),
        ("traceback", None),
        ("error_data", []),
        ("error_data", "text"),
        ("error_data", {"x": "y" * 20_000}),
        ("error_data", deep(100_000)),
        ("unknown", 1),
        ("moment", 1.0),
    ],
)
def test_a_peer_that_tells_nonsense_breaks_the_protocol(field: str, value: object) -> None:
    told = {**failure().to_json(NOW), field: value}
    with pytest.raises(PeerViolation, match="a failure reported by another node"):
        Failure.from_json(told, NOW)


@pytest.mark.parametrize("value", [None, [], "text", 5, {}])
def test_a_peer_that_tells_something_else_breaks_the_protocol(value: object) -> None:
    with pytest.raises(PeerViolation):
        Failure.from_json(value, NOW)


def test_every_field_must_be_there() -> None:
    for name in (whole := failure().to_json(NOW)):
        with pytest.raises(PeerViolation):
            Failure.from_json({key: value for key, value in whole.items() if key != name}, NOW)


@given(st.dictionaries(st.sampled_from(sorted(failure().to_json(NOW))), JSON, max_size=4))
def test_any_words_of_a_peer_give_a_failure_or_the_declared_error(changes: dict[str, Any]) -> None:
    try:
        found = Failure.from_json({**failure().to_json(NOW), **changes}, NOW)
    except PeerViolation:
        return
    assert visible(found.message) == found.message
    assert math.isfinite(found.when)


# Which came first, and what it means.


def test_the_order_is_that_of_the_moments_and_then_of_the_ranks() -> None:
    first = failure(rank=5, at=NOW + 100, moment=NOW - 1)
    second = failure(rank=1, at=NOW)
    third = failure(rank=2, at=NOW)
    assert first_cause([third, second, first]) == (first, second, third)
    assert first_cause([]) == ()


LOST = "RuntimeError: Connection closed by peer"


@pytest.mark.parametrize(
    ("raised", "noticed_after_s", "first"),
    [
        (LOST, 0.9, 1),  # the kill was noticed after what it led to
        (LOST, 1.1, 0),  # too late to be taken for the cause
        ("ValueError: no", 0.001, 0),  # its words tell of no loss: it came first
    ],
)
def test_a_death_without_a_message_comes_before_a_lost_peer(
    raised: str, noticed_after_s: float, first: int
) -> None:
    told = failure(rank=0, at=NOW, exit=Exit(1), message=raised)
    also_told = failure(rank=2, at=NOW + 0.0005, exit=Exit(1), message=LOST)
    killed = failure(rank=1, at=NOW + noticed_after_s, exit=Exit(-9), message=str(Exit(-9)))
    ordered = first_cause([told, also_told, killed])
    assert ordered[0].rank == first
    assert sorted(one.rank for one in ordered) == [0, 1, 2]
    assert [one.rank for one in ordered if one.rank != 1] == [0, 2]


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
        ("ncclRemoteError: … remote process exited or there was a network error", True),
        ("ncclRemoteError: … network error or a remote process exiting prematurely.", True),
        ("NCCL WARN socketProgress: Connection closed by remote peer", True),
        ("ConnectionRefusedError: [Errno 111] Connection refused", True),
        ("PeerLost: worker1 (id 1): it is gone", True),
        ("EOFError: ", True),
        ("EOFError", True),
        ("EOFError: Ran out of input", False),
        ("ValueError: bad", False),
        ("killed by SIGTERM", False),
    ],
)
def test_which_failures_say_that_a_peer_was_gone(message: str, lost: bool) -> None:
    assert lost_a_peer(failure(message=message, error_type="")) is lost


@pytest.mark.parametrize("kind", ["ConnectionResetError", "holdfast.errors.PeerLost"])
def test_the_type_says_that_a_peer_was_gone_where_the_words_do_not(kind: str) -> None:
    assert lost_a_peer(failure(message="step 7 failed", error_type=kind))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "out of memory"),
        (-15, "asked it to end"),
        (-11, "native code"),
        (-7, "/dev/shm"),
        (-13, "had no reader"),
        (127, "not found"),
        (137, "a shell exits with 137 for: killed by SIGKILL"),
        (193, ""),
        (1, ""),
        (-64, ""),
    ],
)
def test_what_an_end_usually_means(code: int, words: str) -> None:
    hint = hint_for(Exit(code))
    assert words in hint
    assert bool(words) == bool(hint)


# What the agent's own error file says.


def test_the_reply_is_the_first_causes_own_file_and_its_code() -> None:
    told = failure(exit=Exit(-6))
    assert told.error_data is not None
    before = json.dumps(told.error_data)
    reply = reply_data(told)
    assert reply == {"message": {**told.error_data["message"], "errorCode": -6}}
    assert json.dumps(told.error_data) == before


def test_the_short_form_is_passed_on_as_it_is() -> None:
    data = {"message": "it broke", "timestamp": 17}
    assert reply_data(failure(error_data=data)) == data


def test_without_a_file_the_reply_says_what_is_known() -> None:
    killed = failure(
        error_data=None, traceback="", stack="", message="killed by SIGKILL", exit=Exit(-9)
    )
    found = parse_error_data(dump_json(reply_data(killed)))
    assert found.message == found.traceback == "killed by SIGKILL"
    assert (found.timestamp, found.moment) == (int(NOW), NOW)
    assert found.data["message"]["errorCode"] == -9
    assert found.data["message"]["extraInfo"]["rank"] == 3
