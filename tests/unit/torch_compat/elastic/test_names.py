"""Which names of torch's elastic modules are ours, in a process that installs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous import RendezvousHandlerRegistry

import holdfast
from holdfast.torch_compat.elastic import names
from holdfast.torch_compat.elastic.rendezvous import create_handler
from tests.torch_versions import needs_newest

SOURCE = str(Path(holdfast.__file__).parents[1])
WITHIN_S = 110

BOUND = """
from unittest.mock import Mock
from torch.distributed.elastic.multiprocessing import start_processes
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
made = Mock()
made.get_backend.return_value = "mine"
registry.register("mine", lambda params: made)
import holdfast.torch_compat as compat
compat.install()
import torch.distributed.launcher.api as launcher
from torch.distributed.elastic import agent, multiprocessing
from torch.distributed.elastic.agent import server
from torch.distributed.elastic.agent.server import local_elastic_agent, SimpleElasticAgent
from torch.distributed.elastic.rendezvous import RendezvousParameters, etcd_server
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
ours = "holdfast.torch_compat.elastic."
assert launcher.LocalElasticAgent.__module__ == ours + "agent"
assert local_elastic_agent.LocalElasticAgent is launcher.LocalElasticAgent
assert issubclass(launcher.LocalElasticAgent, SimpleElasticAgent)
assert multiprocessing.start_processes.__module__ == ours + "processes"
assert local_elastic_agent.start_processes is multiprocessing.start_processes is start_processes
assert local_elastic_agent.create_healthcheck_server.__module__ == ours + "health"
assert launcher.create_healthcheck_server is local_elastic_agent.create_healthcheck_server
assert etcd_server.EtcdServer.__module__ == ours + "etcd"
assert get_rendezvous_handler(RendezvousParameters("mine", "", "run", 1, 1)) is made
"""


@needs_newest
def test_te1_every_module_that_has_a_name_has_ours() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BOUND],
        env={"PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_what_replaces_torchs_is_ours() -> None:
    assert names.replacements()
    for _, ours in names.replacements():
        assert ours.__module__.startswith("holdfast.torch_compat.elastic.")


def test_te2_torchs_backends_are_ours_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", lambda params: params)
    monkeypatch.setattr(names, "rendezvous_handler_registry", registry)
    names.register_backends()
    assert registry._registry.keys() == {"mine", "c10d", "etcd", "etcd-v2", "static"}
    assert registry._registry["c10d"] is create_handler
