"""Put the parts together and run a job on this node: the root of everything above.

    results = elastic_launch(LaunchConfig(1, 1, 4), train)(epochs)

Whatever happens, nothing is left behind: no process, no temporary file, no open port. A signal
makes this node leave the run, which goes on without it; an error of the agent's own ends the run
for all nodes, since none could say what has become of this node's part.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, assert_never, overload

from holdfast import env
from holdfast.agent.agent import Barrier, ElasticAgent
from holdfast.agent.attempt import Report
from holdfast.agent.environment import common_environment
from holdfast.agent.exchange import meet_at_exit
from holdfast.agent.job import Job
from holdfast.agent.outcome import Ending, Outcome
from holdfast.agent.status import AgentStatus
from holdfast.agent.terms import State
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import (
    BUG,
    HoldfastError,
    InternalError,
    Signalled,
    Stopped,
    UsageError,
    WorkersFailed,
    exit_code,
)
from holdfast.ids import new_token
from holdfast.launch.config import LaunchConfig
from holdfast.launch.entrypoints import make_entrypoint
from holdfast.launch.node_job import make_job
from holdfast.launch.report_file import check_report_file, write_report_file
from holdfast.launch.serving import serve_commands, serve_metrics
from holdfast.launch.steering import Steering
from holdfast.net.descriptors import many_descriptors
from holdfast.observe.job_figures import JobFigures
from holdfast.observe.journal import Journal
from holdfast.observe.metrics import Metrics
from holdfast.observe.sinks import FanOut, LogSink, Sink
from holdfast.process.group import LOOK_EVERY_S, WorkerGroup
from holdfast.process.outcome.errorfile import examine, write_reply_file
from holdfast.process.outcome.failure import Failure
from holdfast.process.outcome.memory import MemoryWatch
from holdfast.process.output.logs import AttemptLogs, RunLogs
from holdfast.process.progress import read_step
from holdfast.process.signals import HeldSignals
from holdfast.process.spec import Entrypoint, Exit, Launch, Program, entrypoint_name
from holdfast.process.start.checks import check_entrypoint
from holdfast.process.start.forker import Forker
from holdfast.process.start.spawn import Starter
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
    adopt: bool = False,
) -> dict[int, Any]:
    """Run this node's part of a job and return the results of its workers by rank.

    `show` is told, on this thread, whenever what the agent does has changed. `exit_barrier` and
    `sink` replace where nodes wait for each other at the end, and where events go. `adopt` is for a
    process that does nothing else: it becomes the parent of what its workers leave behind.
    """
    check_report_file(config.report_file)
    environment = env.current()
    run_id = config.run_id or new_token(random.SystemRandom(), 8)
    launch = _Launch(config, entrypoint, run_id, environment, sink, adopt=adopt)
    try:
        outcome = launch.run(show, exit_barrier)
    except Exception as error:
        launch.report((), str(error) or repr(error), error)
        raise
    return _judge(outcome, launch, entrypoint_name(entrypoint), run_id, environment)


class _Launch:
    """Everything that one job needs on this node, from the first resource to the last."""

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Entrypoint,
        run_id: str,
        environment: env.Environment,
        sink: Sink | None,
        *,
        adopt: bool,
    ) -> None:
        self._adopt = adopt
        self._config = config
        self._entrypoint = entrypoint
        self._run_id = run_id
        self._environment = environment
        self._journal = Journal()
        chosen = sink or LogSink(as_json=config.event_log_handler == "console")
        self._host = socket.gethostname()
        self._figures = JobFigures(run_id, self._host)
        self._sink = FanOut([chosen, self._journal, self._figures])
        self._metrics = Metrics()
        self._agent: ElasticAgent | None = None
        self._rendezvous: Rendezvous | None = None
        self._report_file = config.report_file
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
        steering = self._serve_user(stack)
        logs, containment = self._contain(stack)
        job = make_job(
            self._config,
            self._entrypoint,
            self._run_id,
            self._environment,
            host=self._host,
            folder=logs.private,
        )
        check_entrypoint(job.entrypoint, job.environment)
        starter = Starter(
            cgroup=containment.procs_path,
            files=files,
            close_in_child=containment.forget,
            standbys=self._standbys(job, containment),
            forker=self._forker(job, containment, files),
        )
        stack.callback(starter.close)
        self._watch_timers(job, stack)

        def make_group(
            launches: Sequence[Launch], attempt: AttemptLogs, report: Report
        ) -> WorkerGroup:
            return self._group(launches, attempt, starter, containment, report, gone=logs.temporary)

        rendezvous = self._rendezvous = self._meet(show)
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
            steering.follow(self._agent, rendezvous)
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
        if self._report_file is None and not logs.temporary:
            self._report_file = logs.folder / "report.json"
        containment = Containment(logs.private, adopt=self._adopt)
        stack.callback(containment.close)
        stack.callback(logs.close)
        stack.callback(containment.empty)
        return logs, containment.open()

    def _meet(self, show: Callable[[AgentStatus], None]) -> Rendezvous:
        """Find the place where nodes meet; it may be a while until it is there."""
        endpoint = self._config.rdzv_endpoint
        parameters = self._config.rendezvous(self._run_id)
        if endpoint and not endpoint.endswith(":0"):  # that is here
            looking = f"looking for the rendezvous at {endpoint}"
            now = SYSTEM_CLOCK.monotonic()
            show(AgentStatus(State.JOINING, looking, None, None, now, left_s=parameters.join_s))
        return create_rendezvous(parameters)

    def _supervise(self, agent: ElasticAgent, rendezvous: Rendezvous) -> Outcome:
        try:
            return agent.run()
        except Exception as error:
            with contextlib.suppress(HoldfastError):  # what went wrong first is what counts
                rendezvous.close(f"an agent failed on {self._host}: {error}", failed=True)
            raise

    def _standbys(self, job: Job, containment: Containment) -> Standbys | None:
        """Begin to import what the workers will need, while the nodes still meet."""
        if not self._config.warm:
            return None
        if isinstance(job.entrypoint, Program):
            _log.warning(
                "warm: %s is not run by Python: no worker is kept warm", job.entrypoint.path
            )
            return None
        workers = job.node.workers
        common = common_environment(job.environment, workers) | containment.environment
        standbys = Standbys(
            self._config.warm,
            job.entrypoint,
            count=workers,
            environment=common,
            cgroup=containment.procs_path,
        )
        standbys.fill()
        return standbys

    def _forker(
        self, job: Job, containment: Containment, files: tuple[int, int] | None
    ) -> Forker | None:
        """Begin to start what starts programs, while the nodes still meet."""
        if not isinstance(job.entrypoint, Program):
            return None
        environment = {**job.environment, **containment.environment}
        return Forker(environment, cgroup=containment.procs_path, files=files)

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
            failure = replace(failure, step=read_step(launch.progress_file))
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

    def report(self, failures: tuple[Failure, ...], reason: str, error: Exception) -> None:
        """Write the report where the user asked for it, else beside the logs if they are kept.

        Nothing is written of what went wrong before there was an agent.
        """
        if self._report_file is None or self._agent is None or self._rendezvous is None:
            return
        from holdfast.launch import recordings, report

        taken = (self._agent.recording(), self._rendezvous.recording())
        machines = recordings.write_machines(one for one in taken if one is not None)
        code = exit_code(error) if isinstance(error, HoldfastError) else BUG
        name = entrypoint_name(self._entrypoint)
        told = report.as_json(name, self._run_id, failures, reason, code, machines)
        write_report_file(self._report_file, report.dump(told))

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

    def _serve_user(self, stack: ExitStack) -> Steering:
        """Serve what the user of the job asks for while it runs."""
        name = entrypoint_name(self._entrypoint)
        journal, figures = self._journal, self._figures
        steering = Steering(
            self._config, self._run_id, name, self._host, journal=journal, figures=figures
        )
        serve_metrics(stack, steering, self._config, figures)
        serve_commands(stack, steering, self._config, self._environment, journal)
        return steering

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
    launch: _Launch,
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
        case Ending.BROKEN | Ending.STOPPED:
            error = outcome.error or InternalError(reason)
        case _:
            assert_never(outcome.ending)
    if failures and not isinstance(error, WorkersFailed):  # whose text is the report
        error.add_note(report.as_text(name, run_id, failures, reason))
    if failures or not isinstance(error, (Signalled, Stopped)):
        launch.report(failures, reason, error)
    raise error
