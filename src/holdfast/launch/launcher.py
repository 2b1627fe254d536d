"""Put the parts together and run a job on this node: the root of everything above.

    results = elastic_launch(LaunchConfig(1, 1, 4), train)(epochs)

Whatever happens, nothing is left behind: no process, no temporary file, no open port. A signal
makes this node leave the run, which goes on without it; an error of the agent's own ends the run
for all nodes, since none could say what has become of this node's part.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, assert_never, overload

from holdfast import env
from holdfast.agent.agent import AgentStatus, Barrier, ElasticAgent
from holdfast.agent.attempt import Report
from holdfast.agent.environment import common_environment
from holdfast.agent.exchange import meet_at_exit
from holdfast.agent.job import Job
from holdfast.agent.machine import State, Terms
from holdfast.agent.outcome import Ending, Outcome
from holdfast.agent.roles import NodeInfo
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import (
    HoldfastError,
    InternalError,
    Signalled,
    UsageError,
    WorkersFailed,
    exit_code,
)
from holdfast.ids import new_token
from holdfast.launch.config import LaunchConfig
from holdfast.launch.entrypoints import make_entrypoint
from holdfast.net.descriptors import many_descriptors
from holdfast.observe.metrics import Metrics
from holdfast.observe.sinks import LogSink, Sink
from holdfast.process.group import LOOK_EVERY_S, WorkerGroup
from holdfast.process.outcome.errorfile import examine, replace_file, write_reply_file
from holdfast.process.outcome.failure import Failure
from holdfast.process.outcome.memory import MemoryWatch
from holdfast.process.output.logs import AttemptLogs, RunLogs
from holdfast.process.signals import HeldSignals
from holdfast.process.spec import Entrypoint, Exit, Launch, Program, entrypoint_name
from holdfast.process.start.spawn import Starter, check_entrypoint
from holdfast.process.start.warm import Standbys
from holdfast.process.stop.containment import Containment
from holdfast.rendezvous.handler import Rendezvous
from holdfast.rendezvous.registry import create_rendezvous

if TYPE_CHECKING:
    from holdfast.process.watchdog import Watchdog

__all__ = ["elastic_launch", "run_job"]

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("holdfast.launch")


class elastic_launch(Generic[P, T]):  # noqa: N801  # called like the function that it stands for
    """Launch a function or a command on every worker: `elastic_launch(config, f)(*args)`.

    A call blocks until the job ends, and returns what the workers of this node returned, by rank;
    nothing for a command. WorkersFailed names the first cause; Signalled, RendezvousTimedOut and
    the other errors of the tree say what else went wrong.
    """

    @overload
    def __init__(self, config: LaunchConfig, entrypoint: Callable[P, T]) -> None: ...
    @overload
    def __init__(self: elastic_launch[..., Any], config: LaunchConfig, entrypoint: str) -> None: ...
    def __init__(self, config: LaunchConfig, entrypoint: Callable[..., Any] | str) -> None:
        if not isinstance(config, LaunchConfig):
            raise UsageError(
                f"elastic_launch {config!r:.80}: must be a LaunchConfig, and comes first: "
                "elastic_launch(config, entrypoint)"
            )
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> dict[int, T]:
        """Run the job with these arguments; a command takes words only."""
        config = self._config
        return run_job(config, make_entrypoint(self._entrypoint, args, config.start_method, kwargs))


def run_job(
    config: LaunchConfig,
    entrypoint: Entrypoint,
    *,
    show: Callable[[AgentStatus], None] = lambda status: None,
    exit_barrier: Barrier = meet_at_exit,
    sink: Sink | None = None,
) -> dict[int, Any]:
    """Run this node's part of a job and return the results of its workers by rank.

    `show` is told, on this thread, whenever what the agent does has changed. `exit_barrier` and
    `sink` replace where nodes wait for each other at the end, and where events go.
    """
    _check_report(config.report_file)
    environment = env.current()
    run_id = config.run_id or new_token(random.SystemRandom(), 8)
    outcome = _Launch(config, entrypoint, run_id, environment, sink).run(show, exit_barrier)
    return _judge(outcome, config, entrypoint_name(entrypoint), run_id, environment)


class _Launch:
    """Everything that one job needs on this node, from the first resource to the last."""

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Entrypoint,
        run_id: str,
        environment: env.Environment,
        sink: Sink | None,
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._run_id = run_id
        self._environment = environment
        self._sink = sink or LogSink(as_json=config.event_log_handler == "console")
        self._host = socket.gethostname()
        self._metrics = Metrics()
        self._agent: ElasticAgent | None = None
        self._watchdog: Watchdog | None = None

    def run(self, show: Callable[[AgentStatus], None], exit_barrier: Barrier) -> Outcome:
        """Open, run, and close in the opposite order.

        A signal does not cut the closing short: it has its effect when all is closed.
        """
        with HeldSignals(self._config.signals) as held, ExitStack() as stack:
            try:
                return self._run(stack, show, exit_barrier)
            finally:
                held.hold()

    def _run(
        self, stack: ExitStack, show: Callable[[AgentStatus], None], exit_barrier: Barrier
    ) -> Outcome:
        """Run the job; whatever is opened for it is closed by the stack."""
        files = stack.enter_context(many_descriptors())  # first: servers take a share of them
        self._serve_health(stack)
        logs, containment = self._contain(stack)
        job = self._job(logs.private)
        check_entrypoint(job.entrypoint, job.environment)
        starter = Starter(
            cgroup=containment.procs_path,
            files=files,
            close_in_child=containment.forget,
            standbys=self._standbys(job, containment),
        )
        stack.callback(starter.close)
        self._watch_timers(job, stack)

        def make_group(
            launches: Sequence[Launch], attempt: AttemptLogs, report: Report
        ) -> WorkerGroup:
            return self._group(launches, attempt, starter, containment, report, gone=logs.temporary)

        rendezvous = self._meet(show)
        try:
            _fence(containment, rendezvous)
            self._agent = ElasticAgent(
                job,
                rendezvous,
                logs,
                make_group,
                exit_barrier=exit_barrier,
                show=show,
                sink=self._sink,
                metrics=self._metrics,
            )
            return self._supervise(self._agent, rendezvous)
        finally:
            # Not by the stack: a host waits for the other nodes here, and a signal ends that wait.
            rendezvous.shutdown()

    def _contain(self, stack: ExitStack) -> tuple[RunLogs, Containment]:
        """Open the logs and what holds the workers.

        The reaper ends last: it removes what is private if we die before we have done so.
        """
        logs = RunLogs(self._config.logs, self._run_id)
        logs.open()
        containment = Containment(logs.private)
        stack.callback(containment.close)
        stack.callback(logs.close)
        stack.callback(containment.empty)
        return logs, containment.open()

    def _meet(self, show: Callable[[AgentStatus], None]) -> Rendezvous:
        """Find the place where nodes meet; it may be a while until it is there."""
        endpoint = self._config.rdzv_endpoint
        if endpoint and not endpoint.endswith(":0"):  # that is here
            looking = f"looking for the rendezvous at {endpoint}"
            now = SYSTEM_CLOCK.monotonic()
            show(AgentStatus(State.JOINING, looking, place=None, membership=None, turned_at=now))
        return create_rendezvous(self._config.rendezvous(self._run_id))

    def _supervise(self, agent: ElasticAgent, rendezvous: Rendezvous) -> Outcome:
        try:
            return agent.run()
        except Exception as error:
            with contextlib.suppress(HoldfastError):  # what went wrong first is what counts
                rendezvous.close(f"an agent failed on {self._host}: {error}", failed=True)
            raise

    def _job(self, folder: Path) -> Job:
        config = self._config
        return Job(
            run_id=self._run_id,
            node=NodeInfo(config.role, config.nproc_per_node),
            entrypoint=self._entrypoint,
            terms=Terms(
                budget=config.budget,
                grace_s=config.shutdown_timeout,
                exit_barrier_s=config.exit_barrier_timeout,
            ),
            environment=env.variables(),
            host=self._host,
            signals=config.signals,
            master_address=config.master_addr,
            master_port=config.master_port,
            torch_store=self._environment.share_store,
            virtual_local_rank=config.virtual_local_rank,
            numa_binding=config.numa_binding,
            timer_file=self._timer_file(folder),
            secret_file=self._secret_file(folder),
            monitor_interval_s=config.monitor_interval,
            alike=self._alike(),
        )

    def _alike(self) -> str:
        config, window_s = self._config, self._config.restart_window_s
        window = "" if window_s is None else f" in {window_s:g} s"
        nodes = f"{config.min_nodes}:{config.max_nodes} nodes"
        return f"{nodes}, {config.max_restarts} restarts{window}"

    def _timer_file(self, folder: Path) -> Path | None:
        """Return where workers announce timers: where the user says, else in `folder`."""
        if not self._environment.file_timer:
            return None
        return self._environment.timer_file or folder / "timers"

    def _secret_file(self, folder: Path) -> Path | None:
        """Return where workers find the job's secret; never in their environment."""
        given = self._config.secret_file or self._environment.secret_file
        if given is not None:
            from holdfast.net.secret import read_secret_file

            if not given.exists():
                raise UsageError(f"secret file {str(given)!r}: no such file")
            read_secret_file(given)  # what is wrong with it is said now, not when nodes meet
        if given is not None or self._environment.secret is None:
            return given
        path = folder / "secret"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(str.encode(self._environment.secret))
        return path

    def _standbys(self, job: Job, containment: Containment) -> Standbys | None:
        """Begin to import what the workers will need, while the nodes still meet."""
        if not self._config.warm:
            return None
        if isinstance(job.entrypoint, Program):
            _log.warning("warm: %s is no Python: nothing is kept warm", job.entrypoint.path)
            return None
        workers = job.node.workers
        common = common_environment(job.environment, workers) | containment.environment
        standbys = Standbys(self._config.warm, job.entrypoint, count=workers, environment=common)
        standbys.fill()
        return standbys

    def _group(
        self,
        launches: Sequence[Launch],
        attempt: AttemptLogs,
        starter: Starter,
        containment: Containment,
        report: Report,
        *,
        gone: bool,
    ) -> WorkerGroup:
        """Make a group; `gone` says that error files will not outlive the job."""
        memory, started_at = MemoryWatch.take(), SYSTEM_CLOCK.wall()

        def look(launch: Launch, pid: int, exit_: Exit) -> Failure:
            failure = examine(
                launch,
                pid,
                exit_,
                host=self._host,
                started_at=started_at,
                noticed_at=SYSTEM_CLOCK.wall(),
                memory=memory,
                known=self._watchdog.why(pid) if self._watchdog else "",
            )
            return replace(failure, error_file="") if gone else failure

        return WorkerGroup(
            launches,
            attempt,
            starter,
            containment,
            report,
            examine=look,
            # The kernel reports ends; checking for exiting workers is for slow deaths only, and
            # more often would keep an idle agent awake.
            monitor_interval_s=max(LOOK_EVERY_S, self._config.monitor_interval),
        )

    # What runs beside the agent.

    def _watch_timers(self, job: Job, stack: ExitStack) -> None:
        if job.timer_file is None:
            return
        from holdfast.process.watchdog import Watchdog

        watchdog = Watchdog(job.timer_file, self._is_worker, self._sink.emit)
        try:
            watchdog.start()
        except HoldfastError as error:  # as in a job within a job, which has the variable too
            _log.warning("timers are not watched: %s", error)
        else:
            self._watchdog = watchdog
            stack.callback(watchdog.close)

    def _is_worker(self, pid: int) -> bool:
        return self._agent is not None and pid in self._agent.pids().values()

    def _serve_health(self, stack: ExitStack) -> None:
        where = self._environment.health_check_port
        if where is None:
            return
        from holdfast.agent.health import HealthServer

        server = HealthServer(where, self._health, self._metrics)
        server.start()
        stack.callback(server.close)

    def _health(self) -> dict[str, object]:
        if self._agent is None:
            return {"state": "starting"}
        status = self._agent.status()
        return {
            "state": status.state.value,
            "reason": status.reason,
            "round": status.place.round if status.place else 0,
            "turned_s_ago": SYSTEM_CLOCK.monotonic() - status.turned_at,
        }


def _fence(containment: Containment, rendezvous: Rendezvous) -> None:
    """Let the workers' deadline move with this node's lease, also while the agent is busy."""

    def move() -> None:
        if (held := rendezvous.held()) is not None:
            containment.kill_at(held.kill_at)

    rendezvous.subscribe(move)
    move()  # for a lease from before


def _judge(
    outcome: Outcome,
    config: LaunchConfig,
    name: str,
    run_id: str,
    environment: env.Environment,
) -> dict[int, Any]:
    """Return the results, or raise what went wrong."""
    if outcome.failures and (trouble := write_reply_file(outcome.failures, environment)):
        _log.warning("%s", trouble)
    from holdfast.launch import report

    failures, reason = outcome.failures, outcome.reason
    error: HoldfastError
    match outcome.ending:
        case Ending.SUCCEEDED | Ending.NOT_NEEDED:
            return outcome.results
        case Ending.SIGNALLED:
            error = Signalled(reason, signal=outcome.signal or 0)
        case Ending.FAILED:
            error = report.workers_failed(name, run_id, failures, reason)
        case Ending.BROKEN:
            error = outcome.error or InternalError(reason)
        case _:
            assert_never(outcome.ending)
    if failures and not isinstance(error, WorkersFailed):  # whose text is the report
        error.add_note(report.as_text(name, run_id, failures, reason))
    if config.report_file is not None and (failures or isinstance(error, WorkersFailed)):
        told = report.as_json(name, run_id, failures, reason, exit_code(error))
        _write_report(config.report_file, told)
    raise error


def _check_report(path: Path | None) -> None:
    """Raise UsageError if what is there is nothing that a report may replace."""
    with contextlib.suppress(OSError):  # nothing is there, or writing will tell
        if path is not None and not stat.S_ISREG(path.lstat().st_mode):
            raise UsageError(
                f"report {str(path)!r}: must be a regular file, or not be there; a link is not "
                "followed"
            )


def _write_report(path: Path, report: dict[str, Any]) -> None:
    data = json.dumps(report, indent=2) + "\n"
    try:
        _check_report(path)
        replace_file(path, data.encode(), 0o666)
    except OSError as error:
        _log.warning("report %s: %s", path, error.strerror)
    except UsageError as error:  # another process put it there while the job ran
        _log.warning("%s", error)
