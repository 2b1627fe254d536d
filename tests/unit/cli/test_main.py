"""Whatever is typed: an exit code, at most one line of complaint, and nothing started."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.cli import main as main_module
from holdfast.cli.main import main, parser
from holdfast.errors import UsageError
from tests.unit.cli.conftest import Run


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"holdfast {holdfast.__version__}\n", "")


@pytest.mark.parametrize(
    "words",
    [
        *([], ["run"], ["store"], ["doctor"]),
        *(["store", verb] for verb in ("serve", "get", "set", "add", "append", "delete")),
        *(["store", verb] for verb in ("wait", "list", "watch")),
    ],
    ids=" ".join,
)
def test_every_command_has_help(run: Run, words: list[str]) -> None:
    code, out, err = run(*words, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(" ".join(["usage: holdfast", *words, "[-h]"]))
    assert out.count("\n\n") >= 2  # the usage, what it does, and the options
    assert all(len(line) <= 100 for line in out.splitlines())


CHOICES = "'run', 'ps', 'status', 'stop', 'events', 'stack', 'logs', 'page', 'store', 'doctor', "
CHOICES += "'replay'"


@pytest.mark.parametrize(
    ("argv", "command", "why"),
    [
        ("", "holdfast", "the following arguments are required: COMMAND"),
        ("store", "holdfast store", "the following arguments are required: COMMAND"),
        ("store get", "holdfast store get", "the following arguments are required: KEY"),
        ("store get k more\tx", "holdfast store get", r"unrecognized arguments: more\tx"),
        ("run", "holdfast run", "the following arguments are required: SCRIPT"),
        (
            *("s", "holdfast"),
            f"argument COMMAND: invalid choice: 's' (choose from {CHOICES})",
        ),
    ],
)
def test_wrong_words(run: Run, argv: str, command: str, why: str) -> None:
    code, out, err = run(*(argv.split(" ") if argv else []))
    line = f"{command}: {why} (see {command} --help)\n"
    assert (code, out) == (2, "")
    assert err.replace("'", "") == line.replace("'", "")  # newer argparse quotes less


def test_an_error_is_one_line_even_if_it_quotes_others(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(command: str) -> None:
        raise UsageError("they said: a\nb\x1b[2J")

    monkeypatch.setattr(main_module, "parser", wrong)
    assert run() == (2, "", "holdfast: they said: a\\nb\\x1b[2J\n")


def test_a_bug_has_its_own_code_and_shows_where(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(command: str) -> None:
        raise KeyError("x")

    monkeypatch.setattr(main_module, "parser", broken)
    code, out, err = run()
    assert (code, out) == (70, "")
    assert err.startswith("Traceback")
    assert err.endswith(
        "holdfast: this is a bug in holdfast; please report it with the lines above\n"
    )


@pytest.mark.parametrize("kind", [BrokenPipeError, OSError, PermissionError])
def test_a_failure_of_something_else_is_not_one_of_standard_output(
    run: Run, monkeypatch: pytest.MonkeyPatch, kind: type[OSError]
) -> None:
    def broken(command: str) -> None:
        raise kind(1, "of a socket, or of a file")

    monkeypatch.setattr(main_module, "parser", broken)
    code, out, err = run()
    assert (code, out) == (70, "")
    assert "standard output" not in err
    assert "this is a bug in holdfast" in err


def test_an_interrupt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(command: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "parser", interrupted)
    assert run() == (130, "", "")


@pytest.mark.parametrize(("words", "heavy"), [(["run", "--help"], False), (["store"], True)])
def test_a_command_pays_for_its_own_imports_alone(words: list[str], heavy: bool) -> None:
    code = f"""
import sys
from holdfast.cli.main import main
try:
    main({words})
except SystemExit:
    pass
sys.exit("holdfast.store.open" in sys.modules)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == heavy


def test_the_parser_can_be_made_again() -> None:
    assert parser().prog == parser().prog == "holdfast"


# Any words at all, with those that mean something mixed in. None of the endpoints can be used: they
# are wrong, or there is no good secret for them. (The text has no colon, so it is no endpoint.)

WORDS = st.one_of(
    st.sampled_from(
        [
            *("store", "doctor", "serve", "get", "set", "add", "append", "delete", "wait"),
            *("list", "watch", "--store", "--timeout", "--", "-", "-1", "0", "nan", "inf", "", "k"),
            *("--store=", "--timeout=", "--timeout=-1", "--store=tcp://192.0.2.1:7", "tcp://[::1"),
            *("tcp://192.0.2.1:7", "tcp://127.0.0.1:0", "etcd://h:0", "c10d://h:1/x", "file://x"),
            *("--nnodes", "--nproc-per-node=2", "--standalone", "-m", "--max-restarts", "x.py"),
            *("memory://x", "x" * 9000, "\udcff", "a\nb", "\x1b[2J", "tcp://h:1\n", "%s", "{0}"),
        ]
    ),
    st.text(st.characters(exclude_characters="\0:"), max_size=20),
)
COMMANDS = st.sampled_from(
    [
        [],
        ["doctor"],
        ["run", "--dry-run"],
        *(["store", verb] for verb in ("serve", "get", "set", "add", "wait", "list")),
    ]
)


@settings(max_examples=400)
@given(command=COMMANDS, words=st.lists(WORDS, max_size=6))
def test_any_words_are_refused_in_one_line(command: list[str], words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", home)
        patch.delenv("XDG_STATE_HOME", raising=False)
        patch.setenv("HOLDFAST_SECRET", "too short")
        out, err = TextIOWrapper(BytesIO(), "utf-8"), TextIOWrapper(BytesIO(), "utf-8")
        with redirect_stdout(out), redirect_stderr(err):
            try:
                code: object = main(command + words)
            except SystemExit as end:
                code = end.code
        assert list(Path(home).iterdir()) == []
        err.seek(0)
        complaint = err.read()
    if code == 0:  # the user asked for help, or for the version
        assert complaint == ""
    else:
        assert code == 2
        assert complaint.startswith("holdfast")
        assert complaint.count("\n") == 1
        assert complaint.endswith("\n")
