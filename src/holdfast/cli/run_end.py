"""The last line of `holdfast run`: how this node's part of the job ended, when, and after what."""

from __future__ import annotations

from typing import assert_never

from holdfast.agent.outcome import Ending
from holdfast.agent.status import AgentStatus
from holdfast.observe.lines import duration

__all__ = ["last_line"]


def last_line(status: AgentStatus, ending: Ending, took_s: float) -> str:
    """Return how it ended after so many seconds, its restarts, and where the logs are."""
    facts = [duration(took_s), str(status.restarts)]
    if status.logs is not None:
        facts.append(f"logs in {status.logs}")
    told = ", ".join(facts)
    match ending:
        case Ending.SUCCEEDED:
            return f"succeeded in {told}"
        case Ending.FAILED:  # the report stands above, with the first cause
            return f"failed after {told}"
        case Ending.SIGNALLED | Ending.STOPPED | Ending.BROKEN:
            return f"ended after {told}: {status.reason}"
        case Ending.NOT_NEEDED:
            return f"not needed, after {told}: {status.reason}"
        case _:
            assert_never(ending)
