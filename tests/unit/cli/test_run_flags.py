"""The flags are torchrun's, with the same names, variables and defaults, and a few of ours."""

from __future__ import annotations

import argparse
import os

import pytest
import torch.distributed.run

from holdfast.cli.arguments import Parser
from holdfast.cli.run_flags import Text, add_flags, flags, read_flags, unknown_variables
from holdfast.ids import UNNAMED_RUN
from tests.torch_versions import needs_newest

OURS = {"secret_file", "warm", "restarts", "exit_barrier_timeout", "report"}
OURS |= {"metrics_port", "page"}
OURS |= {"restart_on", "no_restart_on", "restart_backoff", "max_same_failures", "stall_after"}
OURS |= {"on", "hosts", "host_file"}
NEWER = {"log_line_prefix_template"}  # of a torch that is newer than the one in use here
# Where our default is another one than torch's, and why it means the same.
OTHER_DEFAULTS = {"logs_specs": "default"}  # torch takes its own default if none is given


@pytest.fixture(scope="module")
def theirs() -> dict[str, argparse.Action]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if name.startswith("PET_"):
                patch.delenv(name)
        parser = torch.distributed.run.get_args_parser()
    return {a.dest: a for a in parser._actions if a.option_strings and a.dest != "help"}


def parse(*words: str) -> argparse.Namespace:
    parser = Parser(prog="p")
    add_flags(parser)
    return parser.parse_args(words)


@needs_newest
def test_there_is_every_flag_of_torchrun(theirs: dict[str, argparse.Action]) -> None:
    assert {flag.dest for flag in flags()} == theirs.keys() | OURS | NEWER


def test_every_spelling_of_torchrun_is_taken(theirs: dict[str, argparse.Action]) -> None:
    for dest, action in theirs.items():
        for name in action.option_strings:
            words, value = ([name], "1") if action.nargs == 0 else ([name, "text"], "text")
            assert getattr(parse(*words), dest) == value


@needs_newest
def test_defaults_mean_what_they_mean_to_torchrun(theirs: dict[str, argparse.Action]) -> None:
    found = read_flags(parse(), {})
    for dest, action in theirs.items():
        nothing = action.default is None or action.default is False or action.default == []
        expected = OTHER_DEFAULTS.get(dest, "" if nothing else str(action.default))
        assert found[dest] == Text(expected)


def test_variables_are_those_of_torchrun(theirs: dict[str, argparse.Action]) -> None:
    for flag in flags():
        if flag.dest in theirs:
            reads = type(theirs[flag.dest]).__name__ in {"env", "check_env"}
            assert flag.variables[:1] == ((f"PET_{flag.dest.upper()}",) if reads else ())


def test_arguments_beat_variables_which_beat_defaults() -> None:
    variables = {"PET_NNODES": "2", "PET_RDZV_ID": "", "PET_STANDALONE": "", "PET_REPORT": "x"}
    found = read_flags(parse("--role=x", "--nnodes", ""), variables)
    assert found["nnodes"] == Text("", "argument --nnodes")
    assert found["role"] == Text("x", "argument --role")
    assert found["rdzv_id"] == Text(UNNAMED_RUN)  # an empty variable counts as unset
    assert found["standalone"] == Text("")
    assert found["report"] == Text("")  # not one of torchrun's
    found = read_flags(parse(), variables)
    assert found["nnodes"] == Text("2", "environment variable PET_NNODES")


@pytest.mark.parametrize(
    ("variables", "dest", "value"),
    [
        ({"PET_N_PROC_PER_NODE": "8"}, "nproc_per_node", "8"),
        ({"PET_N_PROC_PER_NODE": "8", "PET_NPROC_PER_NODE": "4"}, "nproc_per_node", "4"),
        ({"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "x"}, "log_line_prefix_template", "x"),
        ({"PET_LOG_LINE_PREFIX_TEMPLATE": "y"}, "log_line_prefix_template", "y"),
    ],
)
def test_other_names_of_variables(variables: dict[str, str], dest: str, value: str) -> None:
    assert read_flags(parse(), variables)[dest].value == value


def test_variables_that_mean_nothing_are_told() -> None:
    variables = {
        "PET_NPROC_PER_NOD": "2",
        "PET_QQQQ": "x",
        "PET_EMPTY": "",
        "PET_NNODES": "1",
        "PETROL": "1",
    }
    assert list(unknown_variables(variables)) == [
        f"environment variable PET_{text}"
        for text in (
            "NPROC_PER_NOD: unknown, and ignored; did you mean PET_NPROC_PER_NODE?",
            "QQQQ: unknown, and ignored",
        )
    ]


@pytest.mark.parametrize(
    ("words", "page", "command"),
    [
        (["train.py", "--page"], None, ["train.py", "--page"]),
        (["--page", "train.py"], "", ["train.py"]),
        (["--page=8080", "train.py", "--page", "x"], "8080", ["train.py", "--page", "x"]),
        (["--page", "--role", "a", "train.py", "--page=", "--page"], "", None),
        (["--page", "--", "train.py", "--page"], "", ["train.py", "--page"]),
    ],
)
def test_a_flag_with_an_optional_value_never_takes_the_script(
    words: list[str], page: str | None, command: list[str] | None
) -> None:
    parser = Parser(prog="p")
    parser.add_argument("command", nargs=argparse.PARSER)
    add_flags(parser)
    found = parser.parse_args(words)
    assert found.page == page
    rest = found.command[1:] if found.command[0] == "--" else found.command
    assert rest == (command or ["train.py", "--page=", "--page"])
