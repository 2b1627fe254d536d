"""The word of MPI's launchers: Open MPI's mpirun, and MPICH's (Hydra, as Intel MPI's too).

Open MPI says in variables how many processes there are, which one this is, and where mpirun itself
is. So the node on mpirun's host has the store; a node of the job must be there, as it is by
default. All processes also share 128 random bits, from which the job's secret is made.

Hydra says in variables no more than numbers, but answers questions over a descriptor, PMI_FD, in
lines of `key=value` words: PMI, version 1. There rank 0 puts its host's name and a secret, and the
others get them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.errors import PeerViolation, UsageError
from holdfast.net.address import is_loopback
from holdfast.on.place import NodePlace, name_of, port_for
from holdfast.records import dataclass

__all__ = [
    "Hydra",
    "Shared",
    "decode_reply",
    "encode_request",
    "hydra",
    "is_started_by_mpi",
    "open_mpi",
    "open_mpi_secret",
    "place_by_hydra",
    "tasks_on_node",
]

_OPEN_MPI, _HYDRA = "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"
_URI = re.compile(r"tcp://([0-9.,]+):\d+")
_WORD = re.compile(r"[A-Za-z0-9_.:-]{1,200}", re.ASCII)


def is_started_by_mpi(variables: Mapping[str, str]) -> bool:
    """Say whether one of these launchers has started this process."""
    return _OPEN_MPI in variables or (_HYDRA in variables and "PMI_SIZE" in variables)


def tasks_on_node(variables: Mapping[str, str]) -> int:
    """Return how many processes the launcher has started on this node."""
    name = "OMPI_COMM_WORLD_LOCAL_SIZE" if _OPEN_MPI in variables else _HYDRA
    return _number(variables, name, 1)


def _number(variables: Mapping[str, str], name: str, least: int = 0) -> int:
    text = variables.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) >= least):
        raise UsageError(f"environment variable {name}: {text!r:.40} must be {least} or more")
    return int(text)


# Open MPI.


def open_mpi(variables: Mapping[str, str]) -> NodePlace | None:
    """Return the place of a process that Open MPI's mpirun has started; None if none has."""
    if _OPEN_MPI not in variables:
        return None
    job = variables.get("PMIX_NAMESPACE") or variables.get("OMPI_MCA_ess_base_jobid")
    uri = _URI.search(variables.get("OMPI_MCA_orte_hnp_uri", ""))
    if not job or uri is None:
        raise UsageError(
            "argument --on: this Open MPI does not say where mpirun is (tested: 4.1); "
            "give --rdzv-backend, --rdzv-endpoint, --rdzv-id, --nnodes and --on none"
        )
    hosts = [host for host in uri[1].split(",") if not is_loopback(host)] or ["127.0.0.1"]
    run_id = name_of("mpi", job)
    return NodePlace(
        engine="mpi",
        told=f"Open MPI's job {job}",
        run_id=run_id,
        nodes=_number(variables, _OPEN_MPI, 1),
        rank=_number(variables, "OMPI_COMM_WORLD_RANK"),
        host=hosts[0],
        port=port_for(run_id),
        hosts_store=None,
    )


def open_mpi_secret(variables: Mapping[str, str]) -> str | None:
    """Return what only the processes of this job share; None if this Open MPI has no such thing."""
    text = variables.get("OMPI_MCA_orte_precondition_transports", "")
    return f"{text}/open-mpi" if re.fullmatch(r"[0-9a-f]{16}-[0-9a-f]{16}", text) else None


# Hydra.


@dataclass(frozen=True, slots=True)
class Hydra:
    """What Hydra's variables say."""

    fd: int
    rank: int
    size: int
    host: str
    """This host, by the name that Hydra reaches it by; "" if it does not say."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all processes know after they have asked: the job, and what rank 0 has put there."""

    job: str
    host: str


def hydra(variables: Mapping[str, str]) -> Hydra:
    """Read the variables. UsageError if they make no sense."""
    return Hydra(
        _number(variables, "PMI_FD"),
        _number(variables, "PMI_RANK"),
        _number(variables, "PMI_SIZE", 1),
        variables.get("MPIR_CVAR_CH3_INTERFACE_HOSTNAME", ""),
    )


def place_by_hydra(known: Hydra, shared: Shared) -> NodePlace:
    """Return the place of a process that Hydra has started."""
    run_id = name_of("mpi", shared.job)
    return NodePlace(
        engine="mpi",
        told=f"Hydra's job {shared.job}",
        run_id=run_id,
        nodes=known.size,
        rank=known.rank,
        host=shared.host,
        port=port_for(run_id),
        hosts_store=known.rank == 0,
    )


def encode_request(command: str, **words: str) -> bytes:
    """Return a line that asks Hydra. UsageError for a word that it cannot carry."""
    for word in words.values():
        if not _WORD.fullmatch(word):
            raise UsageError(f"word {word!r:.80}: cannot be sent to the launcher")
    return " ".join([f"cmd={command}", *(f"{k}={v}" for k, v in words.items())]).encode() + b"\n"


def decode_reply(line: bytes, command: str) -> dict[str, str]:
    """Read its answer. PeerViolation if it is not one to this command, or says that it failed."""
    text = line.decode(errors="replace").strip()
    words = dict(word.partition("=")[::2] for word in text.split())
    if words.get("cmd") != command or words.get("rc", "0") != "0":
        raise PeerViolation(f"the launcher (PMI_FD) answered {text!r:.80}, not cmd={command}")
    return words
