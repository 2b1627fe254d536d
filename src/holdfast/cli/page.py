"""`holdfast page`: serve a page about a job that runs, until it ends."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from holdfast.cli.arguments import checked
from holdfast.cli.job_access import JobAccess, add_job, told
from holdfast.cli.output import flush, say
from holdfast.net.address import Address, parse_listen

if TYPE_CHECKING:
    from holdfast.cli.arguments import Commands

__all__ = ["add_page"]

_DESCRIPTION = """\
Serve a page about a job, and print its link: nodes and workers, rounds and restarts with their
reasons, logs and stacks. The link has a token, without which nothing is shown, and nothing can be
changed by the page. The command ends with the job.
"""


def add_page(commands: Commands) -> None:
    """Add `page`."""
    parser = commands.add_parser("page", help="show a job in a browser", description=_DESCRIPTION)
    add_job(parser)
    parser.add_argument(
        "--listen",
        type=checked(parse_listen),
        default=Address("127.0.0.1", 0),
        metavar="[HOST:]PORT",
        help="where to serve it (default: a free port of loopback)",
    )
    parser.set_defaults(run=_page)


def _page(given: argparse.Namespace) -> int:
    from holdfast.page.server import PageServer
    from holdfast.page.source import JobAgents

    logging.basicConfig(format="holdfast: %(message)s", level=logging.WARNING)
    access = JobAccess()
    job, answers = access.find(given.job)
    told(answers)  # an agent that answers is needed
    server = PageServer(given.listen, JobAgents(access.folder, job), always=True)
    link = server.start()
    try:
        say(link)
        flush()
        server.ended.wait()
    finally:
        server.close()
    return 0
