"""A wrong argument is one line; what it says comes from the check itself."""

from __future__ import annotations

import pytest

from holdfast.cli.arguments import Parser, add_timeout, checked, one_line
from holdfast.errors import UsageError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é and 日本", "plain, é and 日本"),
        ("two\nlines\ttab", r"two\nlines\ttab"),
        ("\x1b[2J\x00\u2028\udcff", r"\x1b[2J\x00\u2028\udcff"),
    ],
)
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0.0), ("1.5", 1.5), ("1e2", 100.0), ("inf", None)]
)
def test_timeouts(text: str, seconds: float | None) -> None:
    parser = Parser(prog="p")
    add_timeout(parser, "to wait")
    assert parser.parse_args(["--timeout", text]).timeout == seconds
    assert parser.parse_args([]).timeout == 10.0


@pytest.mark.parametrize("text", ["-1", "-0.5", "nan", "soon", "", "1s", "0x1"])
def test_wrong_timeouts(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="p")
    add_timeout(parser, "to wait")
    with pytest.raises(SystemExit) as end:
        parser.parse_args([f"--timeout={text}"])
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        f"p: argument --timeout: {text!r} must be zero or more seconds, or inf (see p --help)\n"
    )


def test_no_abbreviations(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="p")
    add_timeout(parser, "to wait")
    with pytest.raises(SystemExit):
        parser.parse_args(["--time", "1"])
    assert capsys.readouterr().err == (
        "p: unrecognized arguments: --time 1; did you mean --timeout? (see p --help)\n"
    )


@pytest.mark.parametrize(
    ("word", "hint"),
    [("--tiemout=3", "; did you mean --timeout?"), ("--x", ""), ("-x", ""), ("--", "")],
)
def test_what_was_meant(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="p")
    add_timeout(parser, "to wait")
    with pytest.raises(SystemExit):
        parser.parse_args([word, "y"])
    assert capsys.readouterr().err.endswith(f"{hint} (see p --help)\n")


def test_a_longer_option_that_begins_alike_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="p")
    parser.add_argument("--nnodes")
    parser.add_argument("--nproc-per-node")
    with pytest.raises(SystemExit):
        parser.parse_args(["--nprocs", "2"])
    assert "did you mean --nproc-per-node?" in capsys.readouterr().err


def test_the_message_of_a_check_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    def even(text: str) -> int:
        if int(text) % 2:
            raise UsageError(f"{text} is odd")
        return int(text)

    parser = Parser(prog="p")
    parser.add_argument("n", metavar="N", type=checked(even))
    assert parser.parse_args(["4"]).n == 4
    with pytest.raises(SystemExit):
        parser.parse_args(["5"])
    assert capsys.readouterr().err == "p: argument N: 5 is odd (see p --help)\n"
