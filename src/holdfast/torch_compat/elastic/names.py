"""Which names of torch's elastic modules are ours, and how they become so.

Guarantees
    TE-1  Each name is replaced in the module that defines it and in every module that has taken it.
    TE-2  A backend that a program has registered under a name of its own stays.
"""

from __future__ import annotations

from typing import Any

import torch.distributed.elastic.rendezvous.registry  # noqa: F401  # it registers torch's own first
from torch.distributed.elastic import multiprocessing
from torch.distributed.elastic.agent.server import health_check_server, local_elastic_agent
from torch.distributed.elastic.rendezvous import etcd_server, rendezvous_handler_registry
from torch.distributed.elastic.timer import file_based_local_timer

from holdfast.torch_compat.elastic.agent import LocalElasticAgent
from holdfast.torch_compat.elastic.etcd import EtcdServer
from holdfast.torch_compat.elastic.health import create_healthcheck_server
from holdfast.torch_compat.elastic.processes import start_processes
from holdfast.torch_compat.elastic.rendezvous import BACKENDS, create_handler
from holdfast.torch_compat.elastic.timers import FileTimerServer

__all__ = ["register_backends", "replacements"]


def replacements() -> list[tuple[Any, Any]]:
    """Return what of torch's is to be replaced, and by what."""
    return [
        (local_elastic_agent.LocalElasticAgent, LocalElasticAgent),
        (multiprocessing.start_processes, start_processes),
        (health_check_server.create_healthcheck_server, create_healthcheck_server),
        (etcd_server.EtcdServer, EtcdServer),
        (file_based_local_timer.FileTimerServer, FileTimerServer),
    ]


def register_backends() -> None:
    """Let torch's rendezvous registry make ours, by the names of its backends."""
    for backend in BACKENDS:
        rendezvous_handler_registry._registry[backend] = create_handler
