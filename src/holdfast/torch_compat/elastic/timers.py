"""torch's file timer server by our watchdog: it ends a worker that outlasts its timer.

torch's own ends the agent with it, by the same signal, and so the whole node; ours leaves it to
the agent to say what follows, and tells why the worker has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import Any, NoReturn

from torch.distributed.elastic.timer import file_based_local_timer
from torch.distributed.elastic.timer.file_based_local_timer import FileTimerRequest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import UsageError
from holdfast.observe.events import TimerExpired
from holdfast.process.watchdog import Watchdog

__all__ = ["FileTimerServer", "why"]

_watching: list[Watchdog] = []


def why(pid: int) -> str:
    """Say which timer has ended a worker, or nothing."""
    return next(filter(None, (watchdog.why(pid) for watchdog in list(_watching))), "")


class FileTimerServer(file_based_local_timer.FileTimerServer):  # type: ignore[misc]
    """Watches over what workers announce in a FIFO.

    `max_interval` and `daemon` have no effect: the watchdog hears of each timer at once.
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: Callable[[str, FileTimerRequest | None], None] | None = None,
    ) -> None:
        self._tell = log_event or (lambda name, request: None)
        # Only this user can write there, and the processes named there are this user's.
        self._watchdog = Watchdog(Path(file_path), lambda pid: True, self._expired)

    def start(self) -> None:
        """Make the FIFO and watch. UsageError if its path is taken."""
        self._watchdog.start()
        _watching.append(self._watchdog)
        self._tell("watchdog started", None)

    def stop(self) -> None:
        """Stop watching, and remove the FIFO. Idempotent."""
        if self._watchdog in _watching:
            _watching.remove(self._watchdog)
            self._watchdog.close()
            self._tell("watchdog stopped", None)

    def get_last_progress_time(self) -> int:
        """Return the time: a worker that makes no progress is ended, and the agent goes on."""
        return int(SYSTEM_CLOCK.wall())

    def _refuse(self, *_: Any) -> NoReturn:
        """Say that what torch's own tests look at is not there."""
        raise UsageError(
            "FileTimerServer of holdfast keeps timers where its watchdog reads them: run_once, "
            "register_timers, clear_timers and get_expired_timers are torch's alone"
        )

    run_once = register_timers = clear_timers = get_expired_timers = _refuse

    def _expired(self, event: TimerExpired) -> None:
        late = SYSTEM_CLOCK.wall() - event.late_s
        number = Signals[event.signal] if event.signal in Signals.__members__ else 0
        request = FileTimerRequest(event.pid, event.scope, late, int(number))
        for name in ("timer expired", "kill worker process"):
            self._tell(name, request)
