"""Values in the store: they come back as they were, and nothing else is believed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import PeerViolation
from holdfast.ids import NodeId, RunId
from holdfast.rendezvous import model
from holdfast.rendezvous.model import (
    PAGE_MEMBERS,
    Announcement,
    Failures,
    Keys,
    Leader,
    Member,
    MemberRank,
    Page,
    Phase,
    Progress,
    RoundRecord,
    Status,
    clipped,
)

TEXT = st.text(max_size=40)
COUNT = st.integers(0, (1 << 63) - 1)
NODE_ID = TEXT.map(NodeId)
MEMBER = st.builds(Member, NODE_ID, TEXT, TEXT, COUNT)
ANNOUNCEMENT = st.builds(
    Announcement,
    NODE_ID,
    TEXT,
    TEXT,
    COUNT,
    st.sampled_from(Phase),
    COUNT,
    st.none() | COUNT,
    TEXT,
    COUNT,
    TEXT,
)
LEADER = st.builds(Leader, NODE_ID, COUNT)
PAGE = st.lists(MEMBER, max_size=5).map(lambda members: Page(tuple(members)))
PLACE = st.builds(MemberRank, COUNT)
RECORD = st.builds(
    RoundRecord,
    COUNT,
    st.sampled_from(Status),
    TEXT,
    COUNT,
    TEXT,
    TEXT,
    COUNT,
    COUNT,
    st.booleans(),
)
SECONDS = st.none() | st.floats(0, 1e8)
PROGRESS = st.builds(
    Progress, COUNT, COUNT, COUNT, st.lists(TEXT, max_size=4).map(tuple), SECONDS, TEXT
)
MOMENTS = st.lists(st.floats(0, 1e11), max_size=5).map(tuple)
FAILURES = st.builds(Failures, COUNT, COUNT, MOMENTS)
VALUE = ANNOUNCEMENT | LEADER | RECORD | PROGRESS | FAILURES | PAGE | PLACE
KINDS: tuple[Any, ...] = (
    *(Announcement, Leader, RoundRecord, Progress, Failures, Member, Page, MemberRank),
)

ALICE = Member(NodeId("a"), "host-a", "10.0.0.1", 4000)
COMPLETE = RoundRecord(
    3,
    Status.COMPLETE,
    "all places are taken",
    size=1,
    roll="3/a.0.1",
    address="10.0.0.1",
    port=4000,
)


@settings(max_examples=2000)
@given(VALUE)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    data = value.encode()
    assert type(value).decode(data) == value
    assert type(value).decode(data).encode() == data


def refused_or_true(data: bytes) -> None:
    """Every kind either raises PeerViolation, or understands all that there is."""
    for kind in KINDS:
        try:
            value = kind.decode(data)
        except PeerViolation:
            continue
        assert kind.decode(value.encode()) == value


@settings(max_examples=3000)
@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_true(data: bytes) -> None:
    refused_or_true(data)


@settings(max_examples=3000)
@given(VALUE, st.data())
def test_a_damaged_value_is_refused_or_true(value: Any, data: st.DataObject) -> None:
    good = bytearray(value.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(good) - 1))
        good[place] = data.draw(st.integers(0, 255))
    refused_or_true(bytes(good))


@settings(max_examples=1000)
@given(VALUE, st.data())
def test_a_cut_value_is_refused(value: Any, data: st.DataObject) -> None:
    good = value.encode()
    with pytest.raises(PeerViolation):
        type(value).decode(good[: data.draw(st.integers(0, len(good) - 1))])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=3000)
@given(VALUE, st.data())
def test_a_field_of_any_other_type_is_refused_or_true(value: Any, data: st.DataObject) -> None:
    plain = json.loads(value.encode())
    plain[data.draw(st.sampled_from(sorted(plain)))] = data.draw(JSON)
    refused_or_true(json.dumps(plain).encode())


@settings(max_examples=500)
@given(VALUE, st.data())
def test_a_missing_and_an_extra_field_are_refused(value: Any, data: st.DataObject) -> None:
    plain = json.loads(value.encode())
    short = {**plain}
    del short[data.draw(st.sampled_from(sorted(plain)))]
    for wrong in (short, {**plain, "more": 1}):
        with pytest.raises(PeerViolation):
            type(value).decode(json.dumps(wrong).encode())


def with_field(name: str, value: object, of: Any = COMPLETE) -> bytes:
    return json.dumps({**json.loads(of.encode()), name: value}).encode()


@pytest.mark.parametrize("version", [0, 1, 3, "2", True, 2.0, None, [2]])
def test_another_version_is_refused(version: object) -> None:
    with pytest.raises(PeerViolation, match=r"^RoundRecord: version 2 was expected$"):
        RoundRecord.decode(with_field("v", version))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("number", -1, "RoundRecord.number: -1 is not allowed"),
        ("number", True, "RoundRecord.number: True is not allowed"),
        ("number", 1 << 63, "RoundRecord.number: 9223372036854775808 is not allowed"),
        ("number", 1.0, "RoundRecord.number: 1.0 is not allowed"),
        ("status", "open", "RoundRecord.status: 'open' is not allowed"),
        ("status", ["forming"], "RoundRecord.status: list is not allowed"),
        ("reason", None, "RoundRecord.reason: None is not allowed"),
        ("reason", {}, "RoundRecord.reason: dict is not allowed"),
        ("roll", 1, "RoundRecord.roll: 1 is not allowed"),
        ("size", -1, "RoundRecord.size: -1 is not allowed"),
        ("failed", 1, "RoundRecord.failed: 1 is not allowed"),
        ("more", 1, "RoundRecord: fields more are missing or unknown"),
    ],
)
def test_what_is_wrong_is_said(name: str, value: object, message: str) -> None:
    with pytest.raises(PeerViolation) as caught:
        RoundRecord.decode(with_field(name, value))
    assert str(caught.value) == message


@pytest.mark.parametrize("phase", ["resting", 1, None, ["waiting"]])
def test_an_unknown_phase_is_refused(phase: object) -> None:
    alice = Announcement(NodeId("a"), "h", "127.0.0.1", 1, Phase.WAITING, 0, None, "")
    with pytest.raises(PeerViolation, match=r"^Announcement\.phase: "):
        Announcement.decode(with_field("phase", phase, alice))


@pytest.mark.parametrize("left", [-1, "1", True, 1e9, float("nan"), float("inf")])
def test_odd_seconds_are_refused(left: object) -> None:
    progress = Progress(1, 1, 0, (), None, "")
    with pytest.raises(PeerViolation, match=r"^Progress\.left_s: "):
        Progress.decode(with_field("left_s", left, progress))


@pytest.mark.parametrize(
    "times", [1.0, None, ["1"], [True], [-1.0], [1e12], [float("nan")], [1.0, None], [1.0] * 101]
)
def test_odd_times_are_refused(times: object) -> None:
    with pytest.raises(PeerViolation, match=r"^Failures\.times: "):
        Failures.decode(with_field("times", times, Failures(1, 1, (5.0,))))


def test_the_times_of_the_newest_hundred_failures_are_kept() -> None:
    failures = Failures()
    for number in range(1, 151):
        failures = failures.plus(number, float(number))
    assert (failures.count, failures.round) == (150, 150)
    assert failures.times == tuple(map(float, range(51, 151)))
    assert Failures.decode(failures.encode()) == failures


@pytest.mark.parametrize("missing", ["a", [1], {"a": 1}, None])
def test_odd_names_are_refused(missing: object) -> None:
    with pytest.raises(PeerViolation, match=r"^Progress\.missing: "):
        Progress.decode(with_field("missing", missing, Progress(1, 1, 0, (), None, "")))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "Page.members: dict is not allowed"),
        ([1], "Page.members: list is not allowed"),
        ([{}], "Member: fields address, host, node, port are missing or unknown"),
    ],
)
def test_odd_members_are_refused(members: object, message: str) -> None:
    with pytest.raises(PeerViolation, match=f"^{message}$"):
        Page.decode(with_field("members", members, Page(())))


def test_a_page_has_so_many_members_and_no_more() -> None:
    full = Page((ALICE,) * PAGE_MEMBERS)
    assert Page.decode(full.encode()) == full
    with pytest.raises(PeerViolation, match=r"^Page\.members: list is not allowed$"):
        Page.decode(Page((*full.members, ALICE)).encode())


@pytest.mark.parametrize("depth", [50, 200, 500, 900, 985, 2_000, 100_000])
def test_deep_nesting_ends_in_a_violation(depth: int) -> None:
    for name in ("reason", "roll", "number"):
        nested = b"[" * depth + b"]" * depth
        data = with_field(name, "HERE").replace(b'"HERE"', nested)
        with pytest.raises(PeerViolation):
            RoundRecord.decode(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"1", b'"text"', b"\xff\xfe", b"{", b'{"v":' + b"9" * 5000 + b"}"],
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    refused_or_true(data)
    with pytest.raises(PeerViolation):
        RoundRecord.decode(data)


def test_a_huge_value_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(PeerViolation, match=r"4194305 bytes, at most 4194304 are allowed$"):
        RoundRecord.decode(b" " * (model.VALUE_BYTES_MAX + 1))


def test_a_long_text_is_refused_and_clipped_it_is_taken() -> None:
    for length, whole in ((500, True), (501, False), (100_000, False)):
        record = RoundRecord(1, Status.FORMING, clipped("x" * length))
        assert RoundRecord.decode(record.encode()) == record
        assert (record.reason == "x" * length) is whole
        assert record.reason.endswith("…") is not whole
    with pytest.raises(PeerViolation, match=r"^RoundRecord\.reason: 'xxx"):
        RoundRecord.decode(RoundRecord(1, Status.FORMING, "x" * 501).encode())


def test_rm1_what_a_member_reads_does_not_grow() -> None:
    sizes = []
    for size in (10_001, 99_999):
        record = replace(COMPLETE, size=size)
        sizes.append(len(record.encode()) + len(MemberRank(size - 1).encode()))
    assert sizes[0] == sizes[1] < 300


def test_what_a_round_shares_lies_apart_from_what_nodes_follow() -> None:
    keys = Keys(RunId("job"))
    assert keys.node(NodeId("a")) == "rdzv/job/node/a"
    for key in (keys.leader, keys.round, keys.progress, keys.failures):
        assert key.startswith(keys.control)
    assert keys.control.startswith(keys.root)
    assert keys.nodes.startswith(keys.root)
    assert not keys.of_round(1).startswith(keys.root)
    assert not keys.of_round(11).startswith(keys.of_round(1))
    assert not keys.rolls.startswith(keys.root)
    for key in (keys.page("1/a", 0), keys.place("1/a", NodeId("a"))):
        assert key.startswith(keys.rolls + "1/a/")
    pages = [keys.page("1/a", number) for number in (0, 2, 10)]
    assert pages == sorted(pages)
    assert pages[0].startswith(keys.pages("1/a"))
    assert not Keys(RunId("job2")).root.startswith(keys.root)


def test_an_announcement_becomes_a_member() -> None:
    node = Announcement(NodeId("a"), "host-a", "10.0.0.1", 4000, Phase.WORKING, 2, None, "why")
    assert node.member() == ALICE
