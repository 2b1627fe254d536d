"""How commands reach the jobs of this user on this machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from holdfast import env
from holdfast.cli.arguments import one_line
from holdfast.control.client import AgentAnswer, ask_all
from holdfast.control.folder import EntryFolder, open_folder
from holdfast.control.jobs import LocalJob, choose_job, group_jobs
from holdfast.control.messages import AskStatus, Request
from holdfast.errors import HoldfastError, TimeoutExpired, UsageError

__all__ = ["ANSWER_WITHIN_S", "JobAccess", "add_job", "add_json", "told"]

ANSWER_WITHIN_S = 1.0


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add `JOB`, which may be left out."""
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        help="the run id, or RUN@PID of an agent; may be left out if there is one job",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


class JobAccess:
    """The agents of this user on this machine, as they are when asked."""

    def __init__(self, folder: EntryFolder | None = None) -> None:
        self.folder = folder or open_folder(env.current().state_dir, host=os.uname().nodename)

    def ask_everything(self) -> list[tuple[LocalJob, list[AgentAnswer]]]:
        """Ask every agent what it does; return the jobs with their agents' answers."""
        entries = self.folder.entries()
        answers = {
            answer.entry: answer
            for answer in ask_all(self.folder, entries, AskStatus(), ANSWER_WITHIN_S)
        }
        jobs = group_jobs(answers)
        return [(job, [answers[agent] for agent in job.agents]) for job in jobs]

    def find(self, wanted: str | None) -> tuple[LocalJob, list[AgentAnswer]]:
        """Return the job that is meant, with the answers of its agents; UsageError if none is."""
        found = self.ask_everything()
        job = choose_job([job for job, _ in found], wanted)
        return next((one, answers) for one, answers in found if one is job)

    def ask(self, job: LocalJob, request: Request, timeout_s: float) -> list[AgentAnswer]:
        """Ask all agents of a job."""
        return ask_all(self.folder, job.agents, request, timeout_s)


def told(answers: Sequence[AgentAnswer]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what the agents say, and a line for each one that does not answer.

    TimeoutExpired, or what else prevented it, if none does.
    """
    found = [answer.fields for answer in answers if answer.fields is not None]
    errors = [answer.error for answer in answers if answer.error is not None]
    if not found:
        raise _together(errors)
    return found, [f"no answer: {one_line(str(error))}" for error in errors]


def _together(errors: Sequence[HoldfastError]) -> HoldfastError:
    if not errors:
        return UsageError("the job has just ended")
    text = "; ".join(str(error) for error in errors[:3])
    late = all(isinstance(error, TimeoutExpired) for error in errors)
    return TimeoutExpired(text) if late else errors[0]
