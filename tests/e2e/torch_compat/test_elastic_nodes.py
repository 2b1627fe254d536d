"""torch's command on two nodes: two processes that run it, as two hosts would."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.rendezvous.port import HeldPort
from tests.e2e.torch_compat.agents import new_run

TOUCH = """
import os, pathlib, sys
(pathlib.Path(sys.argv[1]) / f"{os.environ['GROUP_RANK']}-{os.environ['RANK']}").touch()
"""
SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.tensor([dist.get_rank()])
dist.all_reduce(ranks)
dist.destroy_process_group()
assert ranks.item() == 1, ranks
"""


@pytest.fixture(scope="module", autouse=True)
def _forking(_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from tests.e2e.torch_compat.processes import forking

    with forking(tmp_path_factory.mktemp("forking")):
        yield


def command(*args: str) -> None:
    """Run torch's command, in a process that has torch already."""
    import torch.distributed.run

    torch.distributed.run.main(list(args))


def run_on_nodes(*nodes: tuple[str, ...]) -> list[int | None]:
    """Run torch's command on some nodes at once; return how each has ended."""
    from tests.e2e.torch_compat.processes import FORKED, WITHIN_S

    made = [FORKED.Process(target=command, args=args) for args in nodes]
    try:
        for process in made:
            process.start()
        for process in made:
            process.join(WITHIN_S)
        return [process.exitcode for process in made]
    finally:
        for process in made:
            process.kill()
            process.join(WITHIN_S)
            process.close()


@contextmanager
def port_with_the_next() -> Iterator[int]:
    """Hold a port and the one after it, for processes that bind them with SO_REUSEADDR."""
    with ExitStack() as held:
        while True:
            first = HeldPort("127.0.0.1")
            held.callback(first.close)
            second = held.enter_context(socket.socket())
            second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                second.bind(("127.0.0.1", first.port + 1))
            except (OSError, OverflowError):
                continue
            yield first.port
            return


def test_nodes_with_fixed_ranks_and_a_given_master(tmp_path: Path) -> None:
    """The ranks are those of the nodes, in any order; gloo meets at the master's port."""
    script = tmp_path / "script.py"
    script.write_text(TOUCH + SUM)
    touched = tmp_path / "touched"
    touched.mkdir()
    with port_with_the_next() as port:
        flags = ["--rdzv-backend=static", "--master-addr=127.0.0.1", f"--master-port={port}"]
        flags += ["--nnodes=2", f"--log-dir={tmp_path}"]
        nodes = [(*flags, f"--node-rank={rank}", str(script), str(touched)) for rank in (1, 0)]
        assert run_on_nodes(*nodes) == [0, 0]
    assert sorted(path.name for path in touched.iterdir()) == ["0-0", "1-1"]


def test_nodes_that_find_each_other(tmp_path: Path, etcd: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(TOUCH)
    touched = tmp_path / "touched"
    touched.mkdir()
    flags = ["--rdzv-backend=etcd", f"--rdzv-endpoint={etcd}", f"--rdzv-id={new_run()}"]
    flags += ["--nnodes=2", "--nproc-per-node=2", f"--log-dir={tmp_path}"]
    assert run_on_nodes(*[(*flags, str(script), str(touched))] * 2) == [0, 0]
    assert sorted(path.name for path in touched.iterdir()) == ["0-0", "0-1", "1-2", "1-3"]
