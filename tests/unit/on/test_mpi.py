"""The variables of MPI's launchers, and what they mean."""

from __future__ import annotations

import pytest

from holdfast.errors import PeerViolation, UsageError
from holdfast.on.mpi import (
    Hydra,
    Shared,
    decode_reply,
    encode_request,
    hydra,
    is_started_by_mpi,
    open_mpi,
    open_mpi_secret,
    place_by_hydra,
    tasks_on_node,
)
from holdfast.on.place import port_for

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_NAMESPACE": "42598401",
    "OMPI_MCA_orte_hnp_uri": "42598400.0;tcp://127.0.0.1,10.0.0.7:53299;tcp6://[fd00::2]:33269",
    "OMPI_MCA_orte_precondition_transports": "a694e237b44665a4-674bfe6840cc56fd",
}
MPICH = {
    "PMI_FD": "6",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "MPI_LOCALNRANKS": "1",
    "MPIR_CVAR_CH3_INTERFACE_HOSTNAME": "b",
}


def test_open_mpi() -> None:
    place = open_mpi(OPEN_MPI)
    assert place is not None
    assert (place.run_id, place.nodes, place.rank) == ("mpi-42598401", 2, 1)
    assert (place.host, place.port) == ("10.0.0.7", port_for("mpi-42598401"))
    assert place.hosts_store is None
    assert open_mpi(MPICH) is None


def test_open_mpi_on_a_machine_without_a_network() -> None:
    place = open_mpi(OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:5"})
    assert place is not None
    assert place.host == "127.0.0.1"


def test_the_secret_of_open_mpi() -> None:
    secret = open_mpi_secret(OPEN_MPI)
    assert secret is not None
    assert "a694e237b44665a4-674bfe6840cc56fd" in secret
    assert open_mpi_secret({}) is None
    assert open_mpi_secret({"OMPI_MCA_orte_precondition_transports": "x"}) is None


@pytest.mark.parametrize("name", ["PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"])
def test_an_open_mpi_that_says_too_little(name: str) -> None:
    with pytest.raises(UsageError, match="^argument --on: this Open MPI does not say"):
        open_mpi({**OPEN_MPI, name: ""})


def test_hydra() -> None:
    known = hydra(MPICH)
    assert known == Hydra(6, 1, 2, "b")
    place = place_by_hydra(known, Shared("kvs_1_0", "a"))
    assert (place.run_id, place.nodes, place.rank, place.host) == ("mpi-kvs_1_0", 2, 1, "a")
    assert place.hosts_store is False
    with pytest.raises(UsageError, match="environment variable PMI_SIZE: '0' must be 1 or more"):
        hydra(MPICH | {"PMI_SIZE": "0"})


def test_which_processes_are_theirs() -> None:
    assert is_started_by_mpi(OPEN_MPI)
    assert is_started_by_mpi(MPICH)
    assert not is_started_by_mpi({})
    assert not is_started_by_mpi({"PMI_SIZE": "2"})  # srun sets it, too
    assert tasks_on_node(OPEN_MPI) == 1
    assert tasks_on_node(MPICH | {"MPI_LOCALNRANKS": "3"}) == 3


def test_questions_and_answers() -> None:
    assert encode_request("put", key="k", value="v:1") == b"cmd=put key=k value=v:1\n"
    with pytest.raises(UsageError, match="cannot be sent to the launcher"):
        encode_request("put", key="a b")
    assert decode_reply(b"cmd=get_result rc=0 value=a=b\n", "get_result")["value"] == "a=b"
    for line in (b"cmd=other rc=0\n", b"cmd=get_result rc=-1\n", b"\xff\n"):
        with pytest.raises(PeerViolation, match="the launcher"):
            decode_reply(line, "get_result")
