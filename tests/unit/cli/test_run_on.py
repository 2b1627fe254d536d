"""From lists of hosts and places to the flags of each node."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from holdfast import env
from holdfast.cli import run_on
from holdfast.cli.arguments import Parser
from holdfast.cli.run_flags import Text, add_flags, read_flags
from holdfast.launch import launcher
from holdfast.launch.config import LaunchConfig
from holdfast.on import munge
from holdfast.on.mpi import Shared, open_mpi_secret
from holdfast.on.order import decode_order
from holdfast.on.place import port_for
from holdfast.on.ssh import HostCommand
from tests.unit.cli.conftest import Run
from tests.unit.on.test_mpi import MPICH, OPEN_MPI
from tests.unit.on.test_place import place
from tests.unit.on.test_slurm import BATCH, STEP


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("PET_", "SLURM_", "OMPI_", "PMI", "HOLDFAST_SECRET")):
            monkeypatch.delenv(name)


def texts(*words: str) -> dict[str, Text]:
    parser = Parser(prog="p")
    add_flags(parser)
    return read_flags(parser.parse_args(words), {})


def test_what_is_given_beats_the_place() -> None:
    found = run_on.fill_in(texts("--rdzv-id=mine", "--rdzv-conf=rank=7"), place())
    assert found["rdzv_id"] == Text("mine", "argument --rdzv-id")
    assert found["nnodes"] == Text("3", "what --on x found")
    assert found["rdzv_conf"].value == "rank=1,is_host=false,rank=7"
    found = run_on.fill_in(texts("--rdzv-backend=etcd", "--rdzv-endpoint=e:1"), place())
    assert found["rdzv_conf"] == Text("")


def test_a_dry_run_shows_what_each_host_would_be_told(run: Run) -> None:
    words = ("--module", "--max-restarts=2", "--", "x", "--hosts")
    code, out, err = run("run", "--dry-run", "--hosts", "ann@a,b:4", *words)
    assert (code, err) == (0, "")
    first, second = json.loads(out)["hosts"]
    assert first["host"] == "ann@a"
    assert "--rdzv-conf=rank=0,is_host=true" in first["arguments"]
    assert "--rdzv-conf=rank=1,is_host=false" in second["arguments"]
    assert "--nproc-per-node=4" in second["arguments"]
    assert second["arguments"][-3:] == ["--", "x", "--hosts"]


def started(
    run: Run, monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[list[HostCommand], int]:
    seen: list[tuple[list[HostCommand], int]] = []

    def see(commands: list[HostCommand], fewest: int, *rest: object) -> int:
        seen.append((commands, fewest))
        return 5

    monkeypatch.setattr(run_on, "run_on_hosts", see)
    code, _, err = run("run", *words)
    assert code == 5
    assert "hosts by ssh: a, b\n" in err
    return seen[0]


def test_every_host_gets_the_secret_that_was_made(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, fewest = started(run, monkeypatch, "--hosts=a,b", "x.py")
    secrets = {decode_order(one.order).secret for one in commands}
    assert len(secrets) == 1
    assert len(secrets.pop()) == 64
    assert fewest == 2


def test_a_secret_that_is_given_is_used(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("s" * 20)
    file.chmod(0o600)
    words = ("--hosts=a,b", "--nnodes=1:2")
    (one, _), fewest = started(run, monkeypatch, *words, f"--secret-file={file}", "x.py")
    assert decode_order(one.order).secret == "s" * 20
    assert fewest == 1
    monkeypatch.setenv("HOLDFAST_SECRET", "t" * 20)
    (one, _), _ = started(run, monkeypatch, *words, "x.py")
    assert decode_order(one.order).secret == "t" * 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hosts=a", "--host-file=x"], "argument --hosts: not together with --host-file"),
        (["--hosts=a b"], "argument --hosts: host 'a b': must be"),
        (["--host-file=/nowhere"], "host file '/nowhere': No such file or directory"),
        (["--host-file=/bin/sh"], "host file '/bin/sh': is not UTF-8"),
        (["--hosts=a", "--on=slurm"], "argument --on: 'slurm' not together with a list of hosts"),
        (["--hosts=a", "--node-rank=1"], "argument --node-rank: not together with a list of hosts"),
        (["--hosts=a", "--secret-file=/nowhere"], "secret file '/nowhere': no such file"),
    ],
)
def test_mistakes_are_told_in_one_line(run: Run, words: list[str], message: str) -> None:
    code, out, err = run("run", *words, "x.py")
    assert (code, out) == (2, "")
    assert err.startswith(f"holdfast: {message}")
    assert err.count("\n") == 1


def test_a_host_file_has_a_largest_size(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_on, "_HOST_FILE_BYTES_MAX", 4)
    path = tmp_path / "hosts"
    path.write_text("a\nb\n\n")
    assert "is larger than 4 bytes" in run("run", f"--host-file={path}", "x.py")[2]
    path.write_text("a\nb\n")
    assert run("run", "--dry-run", f"--host-file={path}", "x.py")[0] == 0


# The word of launchers.


def shown(run: Run, *words: str) -> tuple[dict[str, object], str]:
    """Return the configuration that a dry run shows, and what it says beside it."""
    code, out, err = run("run", "--dry-run", *words, __file__)
    assert code == 0, err
    return json.loads(out)["config"], err


def test_a_step_of_slurms_is_taken_by_itself(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (STEP | {"SLURM_GPUS_ON_NODE": "2", "OMP_NUM_THREADS": "1"}).items():
        monkeypatch.setenv(name, value)
    found, err = shown(run)
    assert err == "holdfast: --on slurm: Slurm job 12, step 3: node 1 of 2, run slurm-12-3-0\n"
    assert (found["min_nodes"], found["max_nodes"], found["nproc_per_node"]) == (2, 2, 2)
    assert found["run_id"] == "slurm-12-3-0"
    assert found["rdzv_endpoint"] == f"n1:{port_for('slurm-12-3-0')}"
    assert found["rdzv_configs"] == {"rank": "1", "is_host": "false"}
    assert found["shutdown_timeout"] == 25


@pytest.mark.parametrize("words", ["--nnodes=1", "--standalone", "--rdzv-id=x", "--on=none"])
def test_what_a_user_says_keeps_it_from_that(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    found, err = shown(run, words)
    assert (found["max_nodes"], err) == (1, "")
    monkeypatch.setenv("PET_MAX_RESTARTS", "1")
    assert shown(run) == shown(run, "--on=none")


def test_a_script_of_slurms_gets_advice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in BATCH.items():
        monkeypatch.setenv(name, value)
    found, err = shown(run)
    assert found["max_nodes"] == 1
    assert err.startswith("holdfast: this Slurm job has 2 nodes, and ")


Launched = list[LaunchConfig]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """What would have been launched."""
    seen: Launched = []

    def see(config: LaunchConfig, entrypoint: object, **options: object) -> None:
        seen.append(config)

    monkeypatch.setattr(launcher, "run_job", see)
    monkeypatch.setenv("HOLDFAST_SECRET", "")  # so that it is put back
    monkeypatch.delenv("HOLDFAST_SECRET")
    return seen


def test_open_mpi_gives_the_secret(
    run: Run, monkeypatch: pytest.MonkeyPatch, launched: Launched
) -> None:
    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    assert run("run", __file__)[0] == 0
    (config,) = launched
    assert config.run_id == "mpi-42598401"
    secret = env.current().secret
    assert secret is not None
    assert str.encode(secret).decode() == open_mpi_secret(OPEN_MPI)


def test_an_open_mpi_without_a_secret(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMPI_MCA_orte_precondition_transports")
    code, _, err = run("run", __file__)
    assert code == 2
    assert err == "holdfast: argument --on: this Open MPI gives no secret; add --secret-file FILE\n"


def test_hydra_gives_the_secret(
    run: Run, monkeypatch: pytest.MonkeyPatch, launched: Launched
) -> None:
    for name, value in MPICH.items():
        monkeypatch.setenv(name, value)
    told = (Shared("kvs_1", "a"), "s" * 20)
    monkeypatch.setattr(run_on, "share", lambda known, host, secret: told)
    assert run("run", __file__)[0] == 0
    assert launched[0].rdzv_endpoint.startswith("a:2")
    assert str.encode(env.current().secret or "") == b"s" * 20


@pytest.mark.parametrize("rank", ["0", "1"])
def test_nodes_of_slurm_share_a_secret(
    run: Run, monkeypatch: pytest.MonkeyPatch, launched: Launched, rank: str
) -> None:
    for name, value in (STEP | {"SLURM_NODEID": rank}).items():
        monkeypatch.setenv(name, value)
    served: list[tuple[object, ...]] = []

    def serve(*what: object) -> nullcontext[None]:
        served.append(what)
        return nullcontext()

    monkeypatch.setattr(munge, "is_there", lambda: True)
    monkeypatch.setattr(run_on, "SecretServer", serve)
    monkeypatch.setattr(run_on, "fetch", lambda where, run_id: "t" * 20)
    assert run("run", __file__)[0] == 0
    held = str.encode(env.current().secret or "").decode()
    if rank == "0":
        assert [(what[1], what[2]) for what in served] == [("slurm-12-3-0", held)]
    else:
        assert held == "t" * 20


def test_a_slurm_without_munge(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(munge, "is_there", lambda: False)
    code, _, err = run("run", __file__)
    assert code == 2
    assert err.startswith("holdfast: argument --on: no program munge, by which nodes could share")


def test_a_step_of_one_node_needs_no_other(
    run: Run, monkeypatch: pytest.MonkeyPatch, launched: Launched
) -> None:
    alone = {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0"}
    for name, value in (STEP | alone).items():
        monkeypatch.setenv(name, value)
    assert run("run", "--on=slurm", __file__)[0] == 0
    assert launched[0].max_nodes == 1


def test_an_engine_that_is_none_of_ours(run: Run) -> None:
    code, _, err = run("run", "--on=pbs", __file__)
    assert code == 2
    assert err == "holdfast: argument --on: 'pbs' must be one of auto, none, slurm, mpi\n"
    assert "mpirun has started this" in run("run", "--on=mpi", __file__)[2]
