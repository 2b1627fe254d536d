"""Lets torch's tests fork their workers, which costs a tenth of what starting them anew does.

torch's tests start each worker as a new interpreter, which imports torch: seconds of work for each
of four workers of each test. With `CONFORMANCE_FORK=1` they are forked of this process, which has
done nothing with torch but import it. The tests themselves are the same.
"""

from __future__ import annotations

import os
from typing import Any

import torch.multiprocessing
from torch.testing._internal.distributed.rpc_utils import SpawnHelper


def apply() -> None:
    """Fork from now on, if we are told to."""
    if os.environ.get("CONFORMANCE_FORK") == "1":
        SpawnHelper._spawn_processes = _fork_processes


def _fork_processes(self: Any) -> None:
    self._start_processes(torch.multiprocessing.get_context("fork").Process)
