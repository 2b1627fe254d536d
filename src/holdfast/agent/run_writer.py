"""What an agent writes to the run's store; each call blocks, on the agent's writer thread."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.agent.effects import Publish, Remember
from holdfast.agent.exchange import keep_description, publish, read_descriptions, say_done
from holdfast.agent.inputs import AgentInput, CountFailed, FailureCounted
from holdfast.clock import Clock, Deadline
from holdfast.errors import HoldfastError
from holdfast.rendezvous.handler import Rendezvous, Round

__all__ = ["STORE_WITHIN_S", "RunWriter"]

STORE_WITHIN_S = 30.0

_log = logging.getLogger("holdfast.agent")


class RunWriter:
    """Writes for one agent; `post` takes what the agent's machine has to hear of it."""

    def __init__(
        self, rendezvous: Rendezvous, post: Callable[[AgentInput], None], clock: Clock
    ) -> None:
        self._rendezvous = rendezvous
        self._post = post
        self._clock = clock

    def publish(self, here: Round, effect: Publish) -> None:
        """Tell the other nodes of a round which of our workers have failed."""
        try:
            publish(here, effect.failures, effect.final, self._clock.wall(), self._deadline())
        except HoldfastError as error:  # the others learn of the round's end anyway
            self._warn("a failure could not be reported", error)

    def say_done(self, here: Round) -> None:
        """Tell them that our workers are done."""
        try:
            say_done(here, self._deadline())
        except HoldfastError as error:  # the others wait for it until their timeout
            self._warn("the end of this node could not be reported", error)

    def count(self, here: Round, compared: int) -> None:
        """Count a failure in the job's account, and post what the account says.

        And what so many failures before it were.
        """
        try:
            failures = self._rendezvous.count_failure(timeout=STORE_WITHIN_S)
            before = read_descriptions(here, failures.count, compared, self._deadline())
        except HoldfastError as error:
            self._post(CountFailed(error))
            return
        self._post(FailureCounted(failures.count, failures.times, self._clock.wall(), before))

    def remember(self, here: Round, effect: Remember) -> None:
        """Keep what a failure was, for the judgement of later ones."""
        try:
            keep_description(here, effect.number, effect.description, self._deadline())
        except HoldfastError as error:  # a later failure counts as another one then
            self._warn("what failed could not be kept", error)

    def close_run(self, reason: str, failed: bool) -> None:
        """End the run for every node."""
        try:
            self._rendezvous.close(reason, failed=failed)
        except HoldfastError as error:
            self._warn("it could not be closed", error)

    def _deadline(self) -> Deadline:
        return Deadline.after(STORE_WITHIN_S, self._clock)

    def _warn(self, what: str, error: HoldfastError) -> None:
        _log.warning("run %s: %s: %s", self._rendezvous.run_id, what, error)
