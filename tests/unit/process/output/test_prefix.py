"""Prefixes, and whole lines out of chunks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.process.output.prefix import (
    DEFAULT_PREFIX,
    LINE_MAX,
    LineSplitter,
    check_prefix,
    matching_lines,
    prefix_lines,
    render_prefix,
)


def rendered(template: str) -> bytes:
    check_prefix(template)
    return render_prefix(template, role="trainer", local_rank=1, rank=5, host="node-b", attempt=2)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (DEFAULT_PREFIX, b"[trainer1]:"),
        ("[${rank}]:", b"[5]:"),
        ("${hostname}/${host} ${role_name} ${attempt} ", b"node-b/node-b trainer 2 "),
        ("$rank$$: ", b"5$: "),
        ("→ ", "→ ".encode()),
        ("", b""),
    ],
)
def test_a_template_is_filled(template: str, text: bytes) -> None:
    assert rendered(template) == text


def test_a_prefix_that_is_no_text_is_written_all_the_same() -> None:
    assert rendered("\udcff") == b"\\udcff"


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError) as caught:
        check_prefix("[${role}${rank}]")
    assert str(caught.value) == (
        "line prefix '[${role}${rank}]': no ${role}; there are ${role_name}, ${local_rank}, "
        "${rank}, ${hostname}, ${host}, ${attempt}"
    )


@pytest.mark.parametrize("template", ["5$", "${}", "${local rank}"])
def test_a_dollar_before_no_name_is_refused(template: str) -> None:
    with pytest.raises(UsageError, match="write '\\$\\$' for a dollar"):
        check_prefix(template)


@pytest.mark.parametrize(
    ("lines", "prefixed"),
    [
        (b"a\n", b"> a\n"),
        (b"\n", b"> \n"),
        (b"a\n\nb\n", b"> a\n> \n> b\n"),
        (b"\xff\x00\n\x0b\x0c\n", b"> \xff\x00\n> \x0b\x0c\n"),
        (b"10%\r20%\rdone\r\nnext\n", b"> 10%\r> 20%\r> done\r\n> next\n"),
        (b"\r", b"> \r"),
    ],
)
def test_each_line_gets_the_prefix_once(lines: bytes, prefixed: bytes) -> None:
    assert prefix_lines(lines, b"> ") == prefixed


def test_lines_match_by_any_needle() -> None:
    lines = b"apple pie\nplain\nan orange\rapple, orange\n"
    assert matching_lines(lines, (b"apple", b"orange")) == b"apple pie\nan orange\rapple, orange\n"
    assert matching_lines(lines, (b"pear",)) == b""
    assert matching_lines(lines, ()) == b""


def test_an_unfinished_line_waits_for_its_end() -> None:
    lines = LineSplitter()
    assert lines.feed(b"one\ntw") == b"one\n"
    assert lines.feed(b"o") == b""
    assert lines.feed(b"\n") == b"two\n"
    assert lines.finish() == b""


def test_the_last_line_is_finished_at_the_end() -> None:
    lines = LineSplitter()
    assert lines.feed(b"no newline") == b""
    assert lines.finish() == b"no newline\n"
    assert lines.finish() == b""


def test_a_carriage_return_ends_a_line_as_soon_as_it_is_not_half_of_a_newline() -> None:
    lines = LineSplitter()
    assert lines.feed(b"10%\r20%") == b"10%\r"
    assert lines.feed(b"\r") == b""
    assert lines.feed(b"30%\r") == b"20%\r"
    assert lines.feed(b"\r") == b"30%\r"
    assert lines.feed(b"\n") == b"\r\n"


def test_an_endless_line_is_cut_and_hardly_kept() -> None:
    lines = LineSplitter()
    piece = b"x" * 1000
    out = b"".join(lines.feed(piece) for _ in range(1000))
    cuts = out.splitlines(keepends=True)
    assert len(cuts) > 10
    assert max(map(len, cuts)) <= LINE_MAX + len(piece) + 1
    assert len(out) - len(cuts) + LINE_MAX >= 1_000_000
    assert (out + lines.finish()).replace(b"\n", b"") == piece * 1000


@given(
    data=st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xff", b"long text"]), max_size=60).map(
        b"".join
    ),
    seed=st.integers(0, 2**32),
)
def test_chunks_do_not_matter(data: bytes, seed: int) -> None:
    rng = random.Random(seed)
    lines, at, out, prefixed = LineSplitter(), 0, b"", b""
    while at < len(data):
        size = rng.randint(1, 5)
        whole = lines.feed(data[at : at + size])
        assert not whole or whole.endswith((b"\n", b"\r"))
        out += whole
        prefixed += prefix_lines(whole, b"> ") if whole else b""
        at += size
    rest = lines.finish()
    assert (out + rest).removesuffix(b"\n") == data.removesuffix(b"\n")
    prefixed += prefix_lines(rest, b"> ") if rest else b""
    expected = b"".join(b"> " + line for line in data.splitlines(keepends=True))
    assert prefixed.removesuffix(b"\n") == expected.removesuffix(b"\n")
