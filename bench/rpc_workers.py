"""Ours and torch's RPC, which have the same functions, and torch's names bound to ours."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from bench.rpc_subject import Function, Subject

__all__ = ["FIRST", "HUB", "MEETING", "Facade", "Holdfast", "Torch", "Workers", "peer"]

MEETING = "BENCH_MEETING"
"""The variable that says where to meet, if not in the folder: between hosts, a URL."""
HUB = "zhub"  # the last by name and number: torch's workers gather at the first


def peer(number: int) -> str:
    """Return the name of one of the callees."""
    return f"peer{number}"


FIRST = peer(0)


class Workers(Subject):
    """A job of so many peers that are called, and a hub that calls."""

    library = "torch" if importlib.util.find_spec("torch") else "numpy"
    functions: ClassVar[str]
    measures = (*Subject.measures, "blocking")

    def __init__(self, peers: int = 1, number: int = 0) -> None:
        self._peers = peers
        self._number = number
        self._rpc: Any = None

    def serve(self, folder: Path, ready: Callable[[], None]) -> None:
        ready()  # they wait for each other
        self._join(folder, peer(self._number), self._number)

    def connect(self, folder: Path) -> None:
        self._join(folder, HUB, self._peers)

    def _join(self, folder: Path, name: str, rank: int) -> None:
        self._rpc = importlib.import_module(self.functions)
        options = self.options(name, os.environ.get(MEETING) or f"file://{folder}/meeting")
        self._rpc.init_rpc(name, rank=rank, world_size=self._peers + 1, **options)

    def options(self, name: str, url: str) -> dict[str, Any]:
        """Return the arguments that say where to meet, and on which devices."""
        return {"init_method": url}

    def call(self, function: Function, *args: Any) -> Any:
        return self._rpc.rpc_sync(FIRST, function, args)

    def start(self, function: Function, *args: Any) -> Callable[[], object]:
        wait: Callable[[], object] = self.future(function, *args).wait
        return wait

    def future(self, function: Function, *args: Any) -> Any:
        """Begin a call, and return its future."""
        return self._rpc.rpc_async(FIRST, function, args)

    def call_with(self, function: Function, named: dict[str, Any]) -> Any:
        """Call with keyword arguments."""
        return self._rpc.rpc_sync(FIRST, function, kwargs=named)

    def remote(self, function: Function, *args: Any) -> Any:
        """Return a reference to a result that stays at the callee."""
        return self._rpc.remote(FIRST, function, args)


class Holdfast(Workers):
    label = "holdfast"
    module = "holdfast"
    functions = "holdfast.rpc"
    measures = (*Workers.measures, "await")


class Torch(Workers):
    label = "torch RPC"
    module = "torch"
    functions = "torch.distributed.rpc"
    measures = (*Workers.measures, "cpu", "cuda", "training")

    def options(self, name: str, url: str) -> dict[str, Any]:
        import torch

        made = self._rpc.TensorPipeRpcBackendOptions(init_method=url)
        if name == HUB and torch.cuda.is_available():
            made.set_device_map(FIRST, {0: 0})
        return {"rpc_backend_options": made}


class Facade(Torch):
    label = "holdfast, by torch's names"

    def _join(self, folder: Path, name: str, rank: int) -> None:
        import holdfast.torch_compat

        holdfast.torch_compat.install()
        super()._join(folder, name, rank)
