"""`holdfast logs`: what the workers of a job wrote, from the files in which it is kept."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.arguments import checked
from holdfast.cli.job_access import JobAccess, add_job, told
from holdfast.cli.log_lines import LogReader
from holdfast.cli.output import complain, flush, say
from holdfast.clock import SYSTEM_CLOCK
from holdfast.control.log_files import attempts_wanted, log_files
from holdfast.control.ranks import check_ranks, name_ranks, parse_rank_list
from holdfast.control.summary import AgentTold
from holdfast.errors import TimeoutExpired, UsageError

if TYPE_CHECKING:
    from holdfast.cli.arguments import Commands

__all__ = ["add_logs"]

FOLLOW_EVERY_S = 0.2
_FLAGS = "start the job with --tee 3 or --redirects 3, and --log-dir DIR to choose the folder"
_DESCRIPTION = """\
Print what the workers of a job wrote, each line with its rank, from the files in which the job
keeps it (--tee, --redirects). Without --attempt, what the workers that were started last wrote.
"""


def add_logs(commands: Commands) -> None:
    """Add `logs`."""
    parser = commands.add_parser(
        "logs", help="print what the workers of a job wrote", description=_DESCRIPTION
    )
    add_job(parser)
    parser.add_argument(
        "--rank", type=checked(parse_rank_list), metavar="RANKS", help="such as 3 or 0,3,5-7"
    )
    parser.add_argument("--grep", metavar="TEXT", help="only lines that contain this")
    parser.add_argument(
        "--attempt", type=checked(_attempt), metavar="N", help="of an earlier attempt, from 0"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on until the job ends, or interrupted"
    )
    parser.set_defaults(run=_logs)


def _logs(given: argparse.Namespace) -> int:
    access = JobAccess()
    job, answers = access.find(given.job)
    agents, missing = told(answers)
    for line in missing:
        complain(f"holdfast: {line}")
    _check(agents, given)
    readers = {path: reader for path, reader in _readers(agents, given) if path.exists()}
    if not readers:
        what = "this job" if given.rank is None else name_ranks(given.rank)
        raise UsageError(f"the output of {what} is kept in no file: {_FLAGS}")
    _print(readers, last=not given.follow)
    exactly = f"{job.run}@{job.agents[0].pid}"
    while given.follow:
        SYSTEM_CLOCK.sleep(FOLLOW_EVERY_S)
        going = True
        try:
            agents, _ = told(access.find(exactly)[1])
        except (UsageError, TimeoutExpired) as error:
            going = isinstance(error, TimeoutExpired)
        for path, reader in _readers(agents, given):  # of a new attempt, or made late
            if path not in readers and path.exists():
                readers[path] = reader
        _print(readers, last=not going)
        if not going:
            break
    return 0


def _print(readers: dict[Path, LogReader], *, last: bool) -> None:
    for reader in readers.values():
        for line in reader.lines(last=last):
            say(line)
    flush()


def _readers(agents: list[AgentTold], given: argparse.Namespace) -> list[tuple[Path, LogReader]]:
    """Return a reader for each file that is wanted, whether it is there or not."""
    return [
        (path, LogReader(path, f"rank {rank} {stream}".rstrip(), given.grep))
        for _, rank, stream, path in log_files(agents, given.attempt, given.rank)
    ]


def _check(agents: list[AgentTold], given: argparse.Namespace) -> None:
    """Refuse an attempt that there was not, and ranks that it did not have here."""
    numbers = [one["number"] for agent in agents for one in agent.get("attempts", [])]
    if given.attempt is not None and given.attempt not in numbers:
        known = f"here are {min(numbers)} to {max(numbers)}" if numbers else "there is none yet"
        raise UsageError(f"attempt {given.attempt}: not of this job; {known}")
    wanted = [one for agent in agents for one in attempts_wanted(agent, given.attempt)]
    there = {one["first_rank"] + n for one in wanted for n in range(one["workers"])}
    check_ranks(given.rank or (), there)


def _attempt(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise UsageError(f"{text!r:.80} must be 0, 1, 2 ...")
    return int(text)
