"""The options of logs, as torchrun means them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.process.output.streams import (
    Destination,
    LogOptions,
    Std,
    Streams,
    parse_filters,
    parse_ranks,
    parse_streams,
)

FILE, TEE = Destination.FILE, Destination.TEE
INHERIT, NOWHERE = Destination.INHERIT, Destination.NOWHERE


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("0", Std.NONE),
        ("1", Std.OUT),
        ("2", Std.ERR),
        (" 3 ", Std.ALL),
        ("0:3,1:1", {0: Std.ALL, 1: Std.OUT}),
        ("12:2, 0:0", {12: Std.ERR, 0: Std.NONE}),
    ],
)
def test_streams_are_read(text: str, streams: Streams) -> None:
    assert parse_streams(text) == streams


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("", "''"),
        ("4", "'4'"),
        ("all", "'all'"),
        ("3,1", "'3,1'"),
        ("0:3,1", "''"),
        ("0:3,", "''"),
        ("0:7", "'7'"),
        ("0:1:2", "'1:2'"),
        ("x:1", "'x'"),
        ("-1:1", "'-1'"),
        ("²:1", "'²'"),
        ("1234567:1", "'1234567'"),
    ],
)
def test_the_bad_part_of_streams_is_named(text: str, bad: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_streams(text, "--tee")
    assert str(caught.value).startswith(f"--tee {text!r}: {bad} must be ")
    assert "\n" not in str(caught.value)


def test_a_rank_may_be_named_once() -> None:
    with pytest.raises(UsageError, match="local rank 1 is given twice"):
        parse_streams("1:1,1:2")


def test_ranks_are_read() -> None:
    assert parse_ranks("0, 2,0") == frozenset({0, 2})
    assert parse_ranks("") is None
    with pytest.raises(UsageError, match="--local-ranks-filter '0,,1': '' must be a local rank"):
        parse_ranks("0,,1", "--local-ranks-filter")


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("apple", ("apple",)),
        ("apple,orange", ("apple", "orange")),
        ("a,,b,c", ("a,b", "c")),
        (",,", (",",)),
        (",,,x", (",", "x")),
        ("", ()),
        ("a,", ("a",)),
    ],
)
def test_filters_are_read(text: str, filters: tuple[str, ...]) -> None:
    assert parse_filters(text) == filters


@pytest.mark.parametrize(
    ("options", "rank_0", "rank_1"),
    [
        (LogOptions(), (INHERIT, INHERIT), (INHERIT, INHERIT)),
        (LogOptions(redirects=Std.OUT), (FILE, INHERIT), (FILE, INHERIT)),
        (LogOptions(redirects={1: Std.ALL}), (INHERIT, INHERIT), (FILE, FILE)),
        (LogOptions(tee=Std.ERR), (INHERIT, TEE), (INHERIT, TEE)),
        (LogOptions(redirects=Std.ALL, tee={0: Std.ALL}), (TEE, TEE), (FILE, FILE)),
        (LogOptions(local_ranks_filter=frozenset({0})), (INHERIT, INHERIT), (NOWHERE, NOWHERE)),
        (
            LogOptions(redirects=Std.ERR, local_ranks_filter=frozenset({0})),
            (INHERIT, FILE),
            (NOWHERE, FILE),
        ),
        (
            LogOptions(tee=Std.OUT, local_ranks_filter=frozenset({0})),
            (TEE, INHERIT),
            (FILE, NOWHERE),
        ),
    ],
)
def test_where_streams_go(
    options: LogOptions,
    rank_0: tuple[Destination, Destination],
    rank_1: tuple[Destination, Destination],
) -> None:
    for rank, expected in enumerate((rank_0, rank_1)):
        found = options.destination(rank, Std.OUT), options.destination(rank, Std.ERR)
        assert found == expected


def test_files_are_kept_if_any_were_asked_for() -> None:
    assert not LogOptions().keeps_files
    assert not LogOptions(redirects={0: Std.NONE}, tee=Std.NONE).keeps_files
    assert LogOptions(redirects={0: Std.NONE, 1: Std.OUT}).keeps_files
    assert LogOptions(tee=Std.ERR).keeps_files
    assert not LogOptions(log_dir=Path("/dev/null"), tee=Std.ALL).keeps_files


def test_filters_are_bytes_by_stream() -> None:
    options = LogOptions(duplicate_stdout_filters=("é", "b"), duplicate_stderr_filters=("c",))
    assert options.filters(Std.OUT) == ("é".encode(), b"b")
    assert options.filters(Std.ERR) == (b"c",)


@pytest.mark.parametrize(
    "given",
    [
        {"log_dir": "logs"},
        {"tee": "3"},
        {"redirects": 3},
        {"redirects": {0: 3}},
        {"tee": {"0": Std.OUT}},
    ],
)
def test_other_types_are_refused_by_name(given: dict[str, Any]) -> None:
    [(name, value)] = given.items()
    with pytest.raises(UsageError) as caught:
        LogOptions(**given)
    assert str(caught.value).startswith(f"{name} {value!r}: must ")


def test_the_prefix_is_checked_at_once() -> None:
    assert LogOptions().template == "[${role_name}${local_rank}]:"
    assert LogOptions(prefix="").template == ""
    with pytest.raises(UsageError, match="no \\${nonsense}"):
        LogOptions(prefix="${nonsense}")
