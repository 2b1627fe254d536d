"""What an agent serves beside its work: its user's commands, metrics, and the page."""

from __future__ import annotations

import logging
import os
import random
from contextlib import ExitStack

from holdfast import __version__
from holdfast.clock import SYSTEM_CLOCK
from holdfast.control.folder import EntryFolder, open_folder
from holdfast.control.jobs import AgentEntry, LocalJob
from holdfast.control.server import ControlServer
from holdfast.env import Environment
from holdfast.errors import HoldfastError, UsageError
from holdfast.ids import new_token
from holdfast.launch.config import LaunchConfig
from holdfast.launch.steering import Steering
from holdfast.net.address import parse_listen
from holdfast.observe.job_figures import JobFigures
from holdfast.observe.journal import Journal

__all__ = ["serve_commands", "serve_metrics"]

_log = logging.getLogger("holdfast.launch")


def serve_commands(
    stack: ExitStack,
    steering: Steering,
    config: LaunchConfig,
    environment: Environment,
    journal: Journal,
) -> None:
    """Let the user's commands, and the page, find this agent.

    What prevents it is no error of the job's, unless the page is asked for.
    """
    endpoint = config.rdzv_endpoint
    entry = AgentEntry(
        token=new_token(random.SystemRandom(), 16),
        run=steering.run_id,
        host=steering.host,
        pid=os.getpid(),
        started_at=SYSTEM_CLOCK.wall(),
        endpoint="" if endpoint.endswith(":0") else endpoint,
    )
    try:
        folder = open_folder(environment.state_dir, host=steering.host)
        server = ControlServer(folder, entry, steering.answer)
        server.start()
    except HoldfastError as error:
        if config.page is not None:
            raise UsageError(f"the page needs a folder of the user: {error}") from None
        _log.info("commands such as `holdfast status` do not find this job: %s", error)
    else:
        stack.callback(server.close)
        stack.callback(journal.close)
        _serve_page(stack, steering, config, folder, entry)


def serve_metrics(
    stack: ExitStack, steering: Steering, config: LaunchConfig, figures: JobFigures
) -> None:
    """Serve metrics if that is asked for; UsageError if the address cannot be bound."""
    if config.metrics_port is None:
        return
    from holdfast.launch.job_metrics import job_metrics
    from holdfast.launch.metrics_port import MetricsServer

    server = MetricsServer(
        parse_listen(config.metrics_port),
        lambda: job_metrics(steering.status(), __version__, figures.snapshot()),
    )
    try:
        steering.metrics_at = f"http://{server.start()}/metrics"
    except UsageError as error:
        raise UsageError(f"metrics port {config.metrics_port}: {error}") from None
    stack.callback(server.close)
    _log.info("metrics are at %s", steering.metrics_at)


def _serve_page(
    stack: ExitStack,
    steering: Steering,
    config: LaunchConfig,
    folder: EntryFolder,
    entry: AgentEntry,
) -> None:
    """Serve the page if it is asked for, and say where; UsageError if that cannot be."""
    if config.page is None:
        return
    from holdfast.page.server import PageServer
    from holdfast.page.source import JobAgents

    source = JobAgents(folder, LocalJob(entry.run, (entry,)))
    server = PageServer(parse_listen(config.page), source)
    try:
        steering.page_at = server.start()
    except UsageError as error:
        raise UsageError(f"page {config.page}: {error}") from None
    stack.callback(server.close)
    # A warning, so that it is seen: the link is of no use to a user who is not told.
    _log.warning("the page of job %s is at %s", entry.run, steering.page_at)
