"""`holdfast ps`, `status`, `stop` and `events`: see and steer the jobs of this user here."""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
from typing import TYPE_CHECKING, Any

from holdfast.cli.arguments import checked, one_line
from holdfast.cli.exits import TIMED_OUT
from holdfast.cli.job_access import ANSWER_WITHIN_S, JobAccess, add_job, add_json, told
from holdfast.cli.job_text import event_line, ps_lines, status_lines
from holdfast.cli.output import complain, flush, say
from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.control.client import ask
from holdfast.control.jobs import AgentEntry
from holdfast.control.messages import AskEvents, AskStop
from holdfast.control.summary import job_summary
from holdfast.errors import HoldfastError, TimeoutExpired, UsageError
from holdfast.threads import start_thread

if TYPE_CHECKING:
    from holdfast.cli.arguments import Commands

__all__ = ["add_events", "add_ps", "add_status", "add_stop"]

WATCH_EVERY_S = 1.0
FOLLOW_S = 20.0
_GRACE_MAX_S = 1e6
_NO_EVENT = 2**52  # a number that none will have
_CLEAR = "\x1b[H\x1b[2J"

_STOP = """\
Stop the whole job: its workers get SIGTERM, and SIGKILL after the grace. `holdfast run` then ends
with exit code 79 and says which user stopped it. This command returns when the agents have ended.
"""


def add_ps(commands: Commands) -> None:
    """Add `ps`."""
    text = "list the jobs of this user on this machine"
    parser = commands.add_parser("ps", help=text, description=text)
    add_json(parser)
    parser.set_defaults(run=_ps)


def add_status(commands: Commands) -> None:
    """Add `status`."""
    text = "show a job: its nodes, workers, restarts and last events"
    parser = commands.add_parser("status", help=text, description=text)
    add_job(parser)
    add_json(parser)
    parser.add_argument(
        "-w", "--watch", action="store_true", help="show it again every second until it ends"
    )
    parser.set_defaults(run=_status)


def add_stop(commands: Commands) -> None:
    """Add `stop`."""
    parser = commands.add_parser("stop", help="stop a job", description=_STOP)
    add_job(parser)
    parser.add_argument(
        "--grace",
        type=checked(_grace),
        metavar="S",
        help="seconds until its workers are killed (default: the job's --shutdown-timeout)",
    )
    parser.set_defaults(run=_stop)


def add_events(commands: Commands) -> None:
    """Add `events`."""
    text = "print what happened to a job"
    parser = commands.add_parser("events", help=text, description=text)
    add_job(parser)
    add_json(parser)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on until the job ends, or interrupted"
    )
    parser.set_defaults(run=_events)


def _ps(given: argparse.Namespace) -> int:
    now, jobs, missing = SYSTEM_CLOCK.wall(), [], []
    for job, answers in JobAccess().ask_everything():
        agents = [answer.fields for answer in answers if answer.fields is not None]
        missing += [
            f"job {one_line(job.run)}: {one_line(str(answer.error))}"
            for answer in answers
            if answer.error is not None
        ]
        if agents:
            jobs.append(job_summary(agents, now))
    if given.json:
        say(json.dumps({"jobs": jobs, "no_answer": missing}, indent=2))
    else:
        for line in ps_lines(jobs, missing):
            say(line)
    return TIMED_OUT if missing else 0


def _status(given: argparse.Namespace) -> int:
    access = JobAccess()
    job, answers = access.find(given.job)
    exactly = f"{job.run}@{job.agents[0].pid}"
    while True:
        agents, missing = told(answers)
        now = SYSTEM_CLOCK.wall()
        if given.json:
            summary = job_summary(agents, now)
            say(json.dumps({**summary, "agents": agents, "no_answer": missing}, indent=2))
        else:
            if given.watch and sys.stdout.isatty():
                say(_CLEAR)
            for line in status_lines(agents, missing, now):
                say(line)
        if not given.watch:
            return TIMED_OUT if missing else 0
        flush()
        SYSTEM_CLOCK.sleep(WATCH_EVERY_S)
        try:
            _, answers = access.find(exactly)
        except UsageError:
            return 0  # it has ended


def _stop(given: argparse.Namespace) -> int:
    access = JobAccess()
    job, _ = access.find(given.job)
    answers = access.ask(job, AskStop(given.grace), ANSWER_WITHIN_S)
    if not answers:
        raise UsageError(f"job {job.run!r:.80}: it has just ended")
    _, missing = told(answers)
    for line in missing:
        complain(f"holdfast: {line}")
    for answer in answers:
        if answer.fields is not None:
            _wait_for_end(access, answer.entry)
    say(f"job {one_line(job.run)}: stopped")
    return TIMED_OUT if missing else 0


def _wait_for_end(access: JobAccess, entry: AgentEntry) -> None:
    """Wait until an agent has ended; TimeoutExpired if it answers no more, but is there."""
    try:
        while True:
            limit = Deadline.after(FOLLOW_S + ANSWER_WITHIN_S)
            answer = ask(access.folder, entry, AskEvents(_NO_EVENT, FOLLOW_S), limit)
            if answer["ended"]:
                return
    except TimeoutExpired:
        raise
    except HoldfastError:
        pass  # it has ended


def _events(given: argparse.Namespace) -> int:
    access = JobAccess()
    job, _ = access.find(given.job)
    answers = access.ask(job, AskEvents(), ANSWER_WITHIN_S)
    agents, missing = told(answers)
    for line in missing:
        complain(f"holdfast: {line}")
    pairs = [(event, agent) for agent in agents for event in agent["events"]]
    for event, agent in sorted(pairs, key=lambda pair: pair[0]["time"]):
        _say_event(event, agent, as_json=given.json)
    if given.follow:
        last = {
            answer.entry: max((one["number"] for one in answer.fields["events"]), default=0)
            for answer in answers
            if answer.fields is not None
        }
        _follow(access, last, as_json=given.json)
    return TIMED_OUT if missing else 0


def _say_event(event: dict[str, Any], agent: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        fields = {name: value for name, value in event.items() if name != "text"}
        say(json.dumps({"host": agent["host"], **fields}))
    else:
        say(event_line(event, agent))


def _follow(access: JobAccess, last: dict[AgentEntry, int], *, as_json: bool) -> None:
    """Print events as they come, until every agent has ended."""
    news: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def follow_one(entry: AgentEntry, number: int) -> None:
        try:
            while True:
                request = AskEvents(number, FOLLOW_S)
                limit = Deadline.after(FOLLOW_S + ANSWER_WITHIN_S)
                answer = ask(access.folder, entry, request, limit)
                news.put(answer)
                number = max([number, *(one["number"] for one in answer["events"])])
                if answer["ended"]:
                    return
        except HoldfastError:
            pass  # it has ended
        finally:
            news.put(None)

    for entry, number in last.items():
        start_thread(threading.Thread(target=follow_one, args=(entry, number), daemon=True))
    flush()
    going = len(last)
    while going:
        answer = news.get()
        if answer is None:
            going -= 1
            continue
        for event in answer["events"]:
            _say_event(event, answer, as_json=as_json)
        flush()


def _grace(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _GRACE_MAX_S:
        raise UsageError(f"{text!r:.80} must be 0 to {_GRACE_MAX_S:g} seconds")
    return seconds
