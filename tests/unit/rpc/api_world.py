"""Workers of `init_rpc` in processes of their own; the test itself may be one more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.rendezvous.port import HeldPort
from holdfast.rpc import current
from holdfast.rpc.api import shutdown

SCRIPT = Path(__file__).with_name("api_worker.py")
ROOT = Path(__file__).parents[3]


class Worker:
    """A worker to be called; see `api_worker.py` for what it says and hears."""

    def __init__(
        self,
        name: str,
        env: dict[str, str] | None = None,
        within: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.process = subprocess.Popen(
            [*within, sys.executable, str(SCRIPT), name, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path()} | (env or {}),
        )

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline() or '"it has ended"')

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def let_end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def discard(self) -> None:
        self.process.kill()
        self.process.wait(20.0)
        for file in (self.process.stdin, self.process.stdout):
            assert file is not None
            file.close()


def path() -> str:
    return os.pathsep.join([str(ROOT), *sys.path])


@contextmanager
def workers() -> Iterator[list[Worker]]:
    """Give a list for workers; none of them is left, and no agent either."""
    made: list[Worker] = []
    try:
        yield made
    finally:
        if current.is_agent_set():
            shutdown(graceful=False, timeout=5.0)
        for worker in made:
            worker.discard()


@contextmanager
def free_port() -> Iterator[int]:
    """Give a port that no other process is given, and a server can listen on."""
    held = HeldPort("127.0.0.1")
    try:
        yield held.port
    finally:
        held.close()
