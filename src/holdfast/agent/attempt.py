"""One attempt: the workers of this node in one round, from their environment to their results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from signal import Signals
from typing import Any, Protocol

from holdfast.agent.environment import RoundFacts, worker_environment
from holdfast.agent.job import Job
from holdfast.agent.pace import Sample
from holdfast.agent.roles import NodeShare, WorkerRanks
from holdfast.agent.torch_store import master_of
from holdfast.process.numa import cpus_for
from holdfast.process.outcome.failure import WorkerExited
from holdfast.process.outcome.stacks import WorkerStack, take_stacks
from holdfast.process.outcome.usage import cpu_seconds, written_bytes
from holdfast.process.output.logs import AttemptLogs, RunLogs, WorkerPlace
from holdfast.process.progress import read_step
from holdfast.process.spec import Function, GroupEnded, Launch, for_local_rank
from holdfast.process.start.returns import read_return
from holdfast.records import dataclass
from holdfast.rendezvous.handler import Round

__all__ = ["Attempt", "AttemptPlace", "Group", "GroupMaker", "Membership", "Report"]

FLUSH_WITHIN_S = 5.0
"""How long the end of an attempt waits for a console that takes nothing."""

Report = Callable[[WorkerExited | GroupEnded], None]


class Group(Protocol):
    """The workers of one attempt, as the agent needs them; see `process/group.py`."""

    def start(self) -> dict[int, int]:
        """Start all workers, from this thread; return their processes by local rank."""
        ...

    def stop(self, number: Signals, grace_s: float) -> None:
        """Begin to stop them."""
        ...

    def pids(self) -> dict[int, int]:
        """Return the processes that run, by local rank."""
        ...

    def ask_stack(self, pid: int) -> bool:
        """Let a worker write its stacks to its file; say whether it can."""
        ...

    def close(self) -> tuple[int, ...]:
        """Kill what still runs; return what cannot be killed."""
        ...


GroupMaker = Callable[[Sequence[Launch], AttemptLogs, Report], Group]
"""Makes the group of an attempt; nothing is started yet."""


@dataclass(frozen=True, slots=True)
class Membership:
    """This node's place in a round: its share of the ranks, and whether torch's store is there."""

    here: Round
    share: NodeShare
    torch_store: bool

    def ranks(self) -> tuple[WorkerRanks, ...]:
        """Return the ranks of this node's workers."""
        return self.share.worker_ranks()


@dataclass(frozen=True, slots=True)
class AttemptPlace:
    """Which attempt of this node it is, in which round, and the ranks that its workers have."""

    number: int
    round: int
    first_rank: int
    workers: int


class Attempt:
    """The workers of one round on this node."""

    def __init__(
        self,
        job: Job,
        number: int,
        membership: Membership,
        logs: RunLogs,
        make_group: GroupMaker,
        report: Report,
    ) -> None:
        self._job = job
        self._ranks = membership.ranks()
        places = [WorkerPlace(r.local_rank, r.rank, r.role) for r in self._ranks]
        self._folder = logs.private
        self._logs = logs.attempt(number, places)
        facts = self._facts(membership)
        self._launches = [self._launch(ranks, facts) for ranks in self._ranks]
        self._group = make_group(self._launches, self._logs, report)

    def start(self) -> dict[int, int]:
        """Start the workers and return their processes by local rank.

        Raises what says why it cannot be done; nothing is left then.
        """
        return self._group.start()

    def stop(self, number: Signals, grace_s: float) -> None:
        """Begin to stop them."""
        self._group.stop(number, grace_s)

    def pids(self) -> dict[int, int]:
        """Return the processes that run, by local rank."""
        return self._group.pids()

    def stacks(self, ranks: Collection[int] | None) -> list[WorkerStack]:
        """Return where the workers of these ranks are that run, or all; blocks for a second."""
        pids = self._group.pids()
        wanted = [
            (launch, pids[launch.local_rank])
            for launch in self._launches
            if launch.local_rank in pids and (ranks is None or launch.rank in ranks)
        ]
        return take_stacks(wanted, self._group.ask_stack)

    def samples(self) -> dict[int, Sample]:
        """Return what is seen of the workers that run, by rank."""
        pids = self._group.pids()
        return {
            one.rank: _sample(one, pids[one.local_rank])
            for one in self._launches
            if one.local_rank in pids
        }

    def place_of(self, rank: int) -> tuple[int, str]:
        """Return the local rank and the role of a rank of this attempt."""
        one = next(one for one in self._launches if one.rank == rank)
        return one.local_rank, one.role

    def results(self) -> dict[int, Any]:
        """Return what the function returned, by rank; for anything else nothing."""
        if not isinstance(self._job.entrypoint, Function):
            return {}
        return {launch.rank: read_return(launch) for launch in self._launches}

    def close(self) -> tuple[int, ...]:
        """End everything and write out the logs; return what cannot be killed. Idempotent."""
        stuck = self._group.close()
        self._logs.close(FLUSH_WITHIN_S)
        return stuck

    def hurry(self) -> None:
        """Let a `close` in another thread wait no longer for readers of the workers' output."""
        self._logs.hurry()

    def _facts(self, membership: Membership) -> RoundFacts:
        job, here = self._job, membership.here
        master = master_of(job, here)
        return RoundFacts(
            run_id=job.run_id,
            master_address=master.host,
            master_port=master.port,
            restart_count=here.failures,
            max_restarts=job.terms.budget.max_restarts,
            use_agent_store=membership.torch_store,
            signals_to_handle=",".join(one.name for one in job.signals),
            round=here.number,
            # A lone node needs no store; its workers have one in a file.
            store=here.endpoint or f"file://{self._folder}/store",
            virtual_local_rank=job.virtual_local_rank,
            timer_file=job.timer_file,
            secret_file=job.secret_file,
        )

    def _launch(self, ranks: WorkerRanks, facts: RoundFacts) -> Launch:
        job, local_rank = self._job, ranks.local_rank
        launch = Launch(
            entrypoint=for_local_rank(job.entrypoint, local_rank),
            local_rank=local_rank,
            rank=ranks.rank,
            role=ranks.role,
            environment={},
            folder=self._logs.folder(local_rank),
            cpus=cpus_for(
                job.numa_binding,
                local_rank,
                ranks.local_world_size,
                visible_gpus=job.environment.get("CUDA_VISIBLE_DEVICES"),
            ),
        )
        environment = worker_environment(
            job.environment, ranks, facts, launch.error_file, launch.progress_file
        )
        return replace(launch, environment=environment)


def _sample(launch: Launch, pid: int) -> Sample:
    step = read_step(launch.progress_file)
    return Sample(step) if step >= 0 else Sample(step, written_bytes(pid), cpu_seconds(pid))
