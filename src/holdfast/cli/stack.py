"""`holdfast stack`: where the workers of a job are, equal stacks merged."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from holdfast.cli.arguments import checked, one_line
from holdfast.cli.exits import TIMED_OUT
from holdfast.cli.job_access import JobAccess, add_job, add_json, told
from holdfast.cli.output import complain, say
from holdfast.control.merged_stacks import merge_stacks
from holdfast.control.messages import AskStacks
from holdfast.control.ranks import check_ranks, name_ranks, parse_rank_list

if TYPE_CHECKING:
    from holdfast.cli.arguments import Commands

__all__ = ["add_stack"]

STACKS_WITHIN_S = 5.0

_DESCRIPTION = """\
Show where the workers of a job are: the Python stacks of all their threads, equal ones merged over
ranks. A worker that is no Python, or that is stopped, is shown with its state and the function of
the kernel in which it waits.
"""


def add_stack(commands: Commands) -> None:
    """Add `stack`."""
    parser = commands.add_parser(
        "stack", help="show where the workers of a job are", description=_DESCRIPTION
    )
    add_job(parser)
    add_json(parser)
    parser.add_argument(
        "--rank", type=checked(parse_rank_list), metavar="RANKS", help="such as 3 or 0,3,5-7"
    )
    parser.set_defaults(run=_stack)


def _stack(given: argparse.Namespace) -> int:
    access = JobAccess()
    job, answers = access.find(given.job)
    agents, _ = told(answers)
    there = [one["rank"] for agent in agents for one in agent["workers"] if one["running"]]
    check_ranks(given.rank or (), there)
    answers = access.ask(job, AskStacks(given.rank), STACKS_WITHIN_S)
    found, missing = told(answers)
    stacks: list[dict[str, Any]] = [
        {"host": agent["host"], **one} for agent in found for one in agent["stacks"]
    ]
    if given.json:
        say(json.dumps({"stacks": stacks, "no_answer": missing}, indent=2))
    else:
        _show(stacks)
        for line in missing:
            complain(f"holdfast: {line}")
    return TIMED_OUT if missing else 0


def _show(stacks: list[dict[str, Any]]) -> None:
    if not stacks:
        say("no worker runs")
    for number, one in enumerate(merge_stacks(stacks)):
        if number:
            say("")
        say(f"{name_ranks(one.ranks)}: {one_line(one.summary)}")
        for line in one.lines:
            say(f"  {one_line(line)}")
