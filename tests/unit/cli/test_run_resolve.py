"""From words and variables to a configuration: torchrun's meaning, and one line for a mistake."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch.distributed.run
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.arguments import Parser
from holdfast.cli.run_flags import add_flags, flags, read_flags
from holdfast.cli.run_resolve import Invocation, describe, resolve
from holdfast.errors import UsageError
from holdfast.launch.config import LaunchConfig
from holdfast.process.output.streams import LogOptions, Std
from holdfast.process.spec import Entrypoint, Module, Program, Script
from tests.torch_versions import needs_newest

HERE = __file__
SECRET = {"HOLDFAST_SECRET": "a-secret-of-the-tests"}


PARSER = Parser(prog="p")
PARSER.add_argument("command", nargs=argparse.PARSER)
add_flags(PARSER)


def run(words: Sequence[str], **variables: str) -> Invocation:
    found = PARSER.parse_args(words)
    return resolve(read_flags(found, variables), found.command, variables)


def config(*words: str, **variables: str) -> LaunchConfig:
    return run([*words, HERE], **variables).config


def refused(*words: str, **variables: str) -> str:
    with pytest.raises(UsageError) as caught:
        run([*words, HERE], **variables)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rules_of_restarts() -> None:
    words = "--restart-on oom,SIGSEGV --no-restart-on=2 --restart-backoff 2s:5m"
    found = config(*words.split(), "--max-same-failures=3")
    assert (found.restart_on, found.no_restart_on) == (("oom", "SIGSEGV"), ("2",))
    assert (found.restart_backoff, found.restart_backoff_max) == (2.0, 300.0)
    assert found.max_same_failures == 3
    assert refused("--restart-on", "SIGNONE").startswith("argument --restart-on: cause 'SIGNONE'")
    assert refused("--restart-backoff", "x").startswith("argument --restart-backoff: 'x' must be")


# Where nodes meet.


@pytest.mark.parametrize(
    ("words", "run_id"),
    [
        ("", ""),
        ("--standalone", ""),
        ("--nnodes 1", ""),
        ("--rdzv-id none", ""),  # torchrun's default
        ("--nnodes=1:1 --rdzv-id mine --node-rank=0 --master-addr h", "mine"),
        ("--standalone --nnodes 1:4 --rdzv-backend etcd --rdzv-endpoint h:1 --rdzv-id x", "x"),
    ],
)
def test_a_single_node_needs_no_rendezvous_flags(words: str, run_id: str) -> None:
    found = config(*words.split())
    assert (found.min_nodes, found.max_nodes, found.run_id) == (1, 1, run_id)
    assert (found.rdzv_backend, found.rdzv_endpoint) == ("c10d", "localhost:0")


@pytest.mark.parametrize(
    "words",
    [
        "--rdzv-backend etcd --rdzv-endpoint h:1",
        "--rdzv-backend etcd-v2 --rdzv-endpoint h:1",
        "--rdzv-backend file --rdzv-endpoint /f",
        "--rdzv-backend c10d --rdzv-endpoint /f --rdzv-conf store_type=file",
        "--rdzv-backend c10d --rdzv-endpoint localhost:29400",
    ],
)
def test_a_store_that_outlives_the_job_needs_an_id_for_each_job(words: str) -> None:
    assert config(*words.split()).run_id == ""  # the launcher makes one
    assert config(*words.split(), "--rdzv-id", "none").run_id == ""  # torchrun's default
    assert config(*words.split(), "--rdzv-id", "mine").run_id == "mine"


@pytest.mark.parametrize("backend", ["etcd", "file"])
def test_several_nodes_are_asked_for_the_id(backend: str) -> None:
    words = ["--nnodes", "2", "--rdzv-backend", backend, "--rdzv-endpoint", "/f"]
    with pytest.raises(UsageError, match=r"^argument --rdzv-id: needed, since the store"):
        config(*words)
    assert config(*words, "--rdzv-id", "mine").run_id == "mine"


def test_a_lone_node_keeps_only_what_concerns_it() -> None:
    found = config("--standalone", "--rdzv-conf", "join_timeout=7,etcd_prefix=/x")
    assert found.rdzv_configs == {"join_timeout": "7"}


@pytest.mark.parametrize(
    ("words", "endpoint", "rank"),
    [
        ("--nnodes 2 --node-rank 1", "127.0.0.1:29500", 1),
        ("--nnodes 2 --master-addr node0 --master-port 4000", "node0:4000", 0),
        ("--nnodes 2 --master-addr ::1", "[::1]:29500", 0),
        ("--nnodes 2 --master-addr [::1]", "[::1]:29500", 0),
        ("--nnodes 2 --master-addr node0 --rdzv-endpoint node1:7", "node1:7", 0),
        ("--master-port 4000", "127.0.0.1:4000", 0),
        ("--rdzv-endpoint 127.0.0.1:4000", "127.0.0.1:4000", 0),
        ("--nnodes 2 --rdzv-conf rank=1", "127.0.0.1:29500", "1"),
        ("--nnodes 2 --rdzv-conf rank=1 --node-rank 0", "127.0.0.1:29500", 0),
    ],
)
def test_static(words: str, endpoint: str, rank: int | str) -> None:
    found = config(*words.split(), **SECRET)
    assert (found.rdzv_backend, found.rdzv_endpoint) == ("static", endpoint)
    assert (found.rdzv_configs["rank"], found.run_id) == (rank, "none")


def test_what_an_operator_sets() -> None:
    variables = {
        "PET_NNODES": "2:4",
        "PET_NPROC_PER_NODE": "3",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "job-worker-0:23456",
        "PET_RDZV_ID": "job",
        "PET_RDZV_CONF": "timeout=900",
        "PET_MAX_RESTARTS": "5",
        "PET_STANDALONE": "",
    }
    found = config(**variables, **SECRET)
    assert (found.min_nodes, found.max_nodes, found.nproc_per_node) == (2, 4, 3)
    assert (found.rdzv_endpoint, found.run_id) == ("job-worker-0:23456", "job")
    assert (found.max_restarts, found.rendezvous("r").join_s) == (5, 900.0)


# The command.


@pytest.mark.parametrize(
    ("words", "entrypoint"),
    [
        ([HERE], Script(HERE)),
        ([HERE, "--nnodes", "3", "-m"], Script(HERE, ("--nnodes", "3", "-m"))),
        (["--", HERE, "--", "-x"], Script(HERE, ("--", "-x"))),
        ([HERE, "--", "-x"], Script(HERE, ("--", "-x"))),
        ([HERE, "--help", "-1", ""], Script(HERE, ("--help", "-1", ""))),
        (["-m", "pkg.train", "-m", "x"], Module("pkg.train", ("-m", "x"))),
        (["-r3", "-t", "0:1", "--module", "pkg"], Module("pkg")),
        (["--no-python", "sh", "-c", "x"], Program("sh", ("-c", "x"))),
        (["--no_python", "/bin/sh"], Program("/bin/sh")),
        (["--run-path", "--no-python", "-m", HERE, "1"], Script(HERE, ("1",))),
    ],
)
def test_entry_points(words: list[str], entrypoint: Entrypoint) -> None:
    assert run(words).entrypoint == entrypoint


def test_another_interpreter() -> None:
    assert run([HERE], PYTHON_EXEC="/opt/py").entrypoint == Script(HERE, (), "/opt/py")
    assert run(["-m", "x"], PYTHON_EXEC="/opt/py").entrypoint == Module("x", (), "/opt/py")


# Everything else.


def test_a_page_without_an_address_is_on_a_free_port() -> None:
    assert (config("--page").page, config().page) == ("0", None)


@pytest.mark.parametrize("flag", ["metrics-port", "page"])
def test_what_is_no_place_to_listen_is_refused(flag: str) -> None:
    with pytest.raises(UsageError) as caught:
        config(f"--{flag}=x")
    assert str(caught.value) == (
        f"argument --{flag}: 'x': must be a port of loopback from 0 to 65535, or host:port"
    )


def test_every_other_flag() -> None:
    words = (
        "--nproc_per_node 2 --role trainer --restarts 3/5m --monitor-interval 0.5 -r 0:3,1:1"
        " --start-method fork --log-dir /logs --tee 2 --local-ranks-filter 0,1"
        " --duplicate-stdout-filters a,b,,c --duplicate_stderr_filters d --local-addr 10.0.0.1"
        " --log-line-prefix-template [${rank}] --event-log-handler console"
        " --signals-to-handle SIGTERM,SIGUSR2 --virtual-local-rank --shutdown-timeout 0"
        " --exit-barrier-timeout 7.5 --warm torch,a.b --numa-binding socket"
        " --secret-file /s --report /r.json --metrics-port 9100 --page=10.0.0.1:80"
    )
    assert config(*words.split()) == LaunchConfig(
        1,
        1,
        2,
        role="trainer",
        rdzv_endpoint="localhost:0",
        max_restarts=3,
        restart_window_s=300.0,
        monitor_interval=0.5,
        start_method="fork",
        logs=LogOptions(
            log_dir=Path("/logs"),
            redirects={0: Std.ALL, 1: Std.OUT},
            tee=Std.ERR,
            prefix="[${rank}]",
            local_ranks_filter=frozenset({0, 1}),
            duplicate_stdout_filters=("a", "b,c"),
            duplicate_stderr_filters=("d",),
        ),
        local_addr="10.0.0.1",
        event_log_handler="console",
        signals_to_handle="SIGTERM,SIGUSR2",
        virtual_local_rank=True,
        shutdown_timeout=0.0,
        exit_barrier_timeout=7.5,
        warm=("torch", "a.b"),
        numa_binding="socket",
        secret_file=Path("/s"),
        report_file=Path("/r.json"),
        metrics_port="9100",
        page="10.0.0.1:80",
    )


def test_defaults_are_torchruns() -> None:
    found = config()
    assert (found.max_restarts, found.restart_window_s) == (0, None)
    assert found.logs == LogOptions()


def test_restarts_beat_max_restarts() -> None:
    assert config("--restarts", "2", PET_MAX_RESTARTS="7").max_restarts == 2


@pytest.mark.parametrize(
    ("words", "variables", "seconds"),
    [
        ([], {}, 30.0),
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}, 5.0),
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5", "PET_SHUTDOWN_TIMEOUT": "6"}, 6.0),
        (["--shutdown-timeout=7"], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}, 7.0),
    ],
)
def test_the_time_to_end(words: list[str], variables: dict[str, str], seconds: float) -> None:
    assert config(*words, **variables).shutdown_timeout == seconds


def test_devices_that_the_variables_leave() -> None:
    expected = len(os.sched_getaffinity(0))
    assert config("--nproc-per-node", "auto", CUDA_VISIBLE_DEVICES="").nproc_per_node <= expected


@pytest.mark.parametrize(
    ("words", "variables", "warnings"),
    [
        ("", {}, []),
        ("--nproc-per-node 2", {"OMP_NUM_THREADS": "4"}, []),
        ("--nproc-per-node 2", {}, ["OMP_NUM_THREADS is not set: each worker gets 1"]),
        ("", {"PET_NODES": "1"}, ["environment variable PET_NODES: unknown"]),
        (
            "--rdzv-backend c10d --node-rank 1 --master-port 4000",
            {"PET_MASTER_ADDR": "h"},
            ["--node-rank is ignored", "--master-addr is ignored", "--master-port is ignored"],
        ),
        (
            "--rdzv-backend c10d --nnodes 1:2",
            {},
            ["--rdzv-endpoint is not given: only nodes of this machine meet, at localhost:29400"],
        ),
    ],
)
def test_warnings(words: str, variables: dict[str, str], warnings: list[str]) -> None:
    found = run([*words.split(), HERE], **variables).warnings
    assert len(found) == len(warnings)
    assert all(text.startswith(start) for text, start in zip(found, warnings, strict=True))


# The same as torchrun, asked itself.


@needs_newest
@pytest.mark.parametrize(
    "words",
    [
        "--nnodes 2:3 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint h:1 --rdzv-id i",
        "--nnodes=2 --node_rank=1 --master_addr=h --master_port=2 --max-restarts=3",
        "--master-port 2 --role r --monitor-interval 2 --start-method fork -r 3 -t 0:1",
        "--rdzv-backend etcd --rdzv-endpoint h:1 --rdzv-id i --rdzv-conf timeout=3,etcd_prefix=/x",
        "--master-port 2 --local-addr 10.0.0.1 --virtual-local-rank --shutdown-timeout 3",
        "--master-port 2 --duplicate-stdout-filters a,,b,c --signals-to-handle SIGTERM",
    ],
)
def test_torchrun_understands_the_same(
    words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # torch makes a folder there
    theirs, command, args = torch.distributed.run.config_from_args(
        torch.distributed.run.parse_args([*words.split(), HERE, "-x"])
    )
    ours = run([*words.split(), HERE, "-x"], **SECRET)
    for name in (
        *("min_nodes", "max_nodes", "nproc_per_node", "run_id", "role", "rdzv_backend"),
        *("rdzv_endpoint", "max_restarts", "monitor_interval", "start_method", "local_addr"),
        *("event_log_handler", "signals_to_handle", "virtual_local_rank", "shutdown_timeout"),
    ):
        assert getattr(ours.config, name) == getattr(theirs, name), name
    times = {"timeout"}  # torch adds its own default
    conf = {k: str(v) for k, v in theirs.rdzv_configs.items() if k not in times}
    assert {k: str(v) for k, v in ours.config.rdzv_configs.items() if k not in times} == conf
    logs = ours.config.logs
    assert list(logs.duplicate_stdout_filters) == theirs.duplicate_stdout_filters
    assert (logs.redirects, logs.tee) == (theirs.logs_specs._redirects, theirs.logs_specs._tee)
    assert (command, args) == (sys.executable, ["-u", HERE, "-x"])
    assert ours.entrypoint == Script(HERE, ("-x",))


# Mistakes.


@pytest.mark.parametrize(
    ("words", "variables", "why"),
    [
        ("--nnodes 0", {}, "argument --nnodes: '0' must be N or MIN:MAX, with 1 <= MIN <= MAX"),
        ("--nnodes 3:2", {}, "argument --nnodes: '3:2' must be N or MIN:MAX"),
        ("--nnodes 1:2:3", {}, "argument --nnodes: '1:2:3' must be N or MIN:MAX"),
        ("--nnodes 1:", {}, "argument --nnodes: '1:' must be N or MIN:MAX"),
        ("", {"PET_NNODES": "x"}, "environment variable PET_NNODES: 'x' must be N or MIN:MAX"),
        ("--standalone --nnodes 2", {}, "argument --standalone: is for one node, not for 2"),
        ("--nproc-per-node 0", {}, "argument --nproc-per-node: '0' must be a number from 1"),
        ("", {"PET_N_PROC_PER_NODE": "-1"}, "environment variable PET_N_PROC_PER_NODE: '-1' must"),
        ("", {"PET_STANDALONE": "maybe"}, "environment variable PET_STANDALONE: 'maybe' must be 0"),
        ("", {"PET_START_METHOD": "bogus"}, "environment variable PET_START_METHOD: 'bogus' must"),
        ("--max-restarts -1", {}, "argument --max-restarts: '-1' must be a whole number"),
        ("--restarts 3/x", {}, "argument --restarts: restarts '3/x': must be like 3, 3/60s"),
        ("--monitor-interval soon", {}, "argument --monitor-interval: 'soon' must be a number of"),
        ("--monitor-interval 0", {}, "monitor_interval 0.0: must be more than 0 seconds"),
        ("--shutdown-timeout nan", {}, "argument --shutdown-timeout: 'nan' must be a number of"),
        ("--exit-barrier-timeout inf", {}, "argument --exit-barrier-timeout: 'inf' must be a"),
        ("--redirects 4", {}, "argument --redirects: streams '4'"),
        ("--tee 0:x", {}, "argument --tee: streams '0:x'"),
        ("--local-ranks-filter a", {}, "argument --local-ranks-filter: local ranks 'a'"),
        ("--rdzv-conf x", {}, "argument --rdzv-conf: rendezvous configuration 'x': must be"),
        ("--rdzv-id ../x --nnodes 2", SECRET, "run id '../x'"),
        ("--rdzv-backend zeus", {}, "rendezvous backend 'zeus': unknown; known: c10d, etcd"),
        ("--node-rank x --nnodes 2", SECRET, "argument --node-rank: 'x' must be a whole number"),
        ("--master-port x", {}, "argument --master-port: 'x' must be a whole number"),
        ("--logs-specs mine", {}, "argument --logs-specs: 'mine' is not supported"),
        ("--numa-binding all", {}, "argument --numa-binding: 'all' must be one of node, socket"),
        ("--event-log-handler x", {}, "argument --event-log-handler: 'x' must be one of null"),
        ("--signals-to-handle X", {}, "signals_to_handle 'X': unknown"),
        ("--warm a/b", {}, "warm 'a/b': must be the name of a module"),
        ("--log-line-prefix-template ${x}", {}, "line prefix '${x}': no ${x}"),
        ("-m --no-python", {}, "argument --no-python: not together with --module"),
        ("", {"HOLDFAST_SECRETS": "x"}, "environment variable HOLDFAST_SECRETS: unknown"),
    ],
)
def test_mistakes(words: str, variables: dict[str, str], why: str) -> None:
    assert refused(*words.split(), **variables).startswith(why)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["no/such.py"], "script 'no/such.py': no such file"),
        (["--no-python", "no-such"], "program 'no-such': no such file, or it cannot be executed"),
        (["--no-python", HERE], f"program {HERE!r}: no such file, or it cannot be executed"),
        (["a\0b"], "script 'a\\x00b': no such file"),
        ([""], "script '': no such file"),
    ],
)
def test_what_cannot_be_run(words: list[str], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(words)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("--nnodes 2 --master-addr node0", True),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0", True),
        ("--rdzv-backend c10d --rdzv-endpoint 0.0.0.0:1", True),
        ("--nnodes 2 --rdzv-backend c10d", False),  # several on one host: its user has a secret
        ("--nnodes 2 --master-addr 127.0.0.1", False),
        ("--master-addr node0 --master-port 1", False),  # alone: it meets no other node
        ("--nnodes 2 --rdzv-backend etcd --rdzv-endpoint node0 --rdzv-id i", False),
        ("--rdzv-backend c10d --rdzv-endpoint /f --rdzv-conf store_type=file", False),
        ("--nnodes 2 --master-addr node0 --secret-file s", False),
    ],
)
def test_nodes_that_others_can_reach_need_a_secret(words: str, needed: bool) -> None:
    if needed:
        assert "need the job's secret: make one, (umask 077; openssl" in refused(*words.split())
        config(*words.split(), HOLDFAST_SECRET_FILE="s")
        config(*words.split(), **SECRET)
    else:
        config(*words.split())


def test_it_can_be_shown_without_the_secret() -> None:
    words = ["--nnodes", "2", "--local-ranks-filter", "1,0", "-r", "1:3", "--log-dir", "/l"]
    shown = describe(run([*words, HERE, "x"], **SECRET))
    assert SECRET["HOLDFAST_SECRET"] not in repr(shown)
    assert shown["entrypoint"] == {"kind": "script", "path": HERE, "args": ["x"], "python": ""}
    assert shown["config"]["rdzv_endpoint"] == "127.0.0.1:29500"
    assert shown["config"]["logs"]["redirects"] == {"1": 3}
    assert shown["config"]["logs"]["local_ranks_filter"] == [0, 1]
    assert shown["config"]["logs"]["log_dir"] == "/l"


# Anything at all: a configuration, or one line.

PLAIN = [
    *("", "0", "1", "-1", "2", "1:2", "2:1", "1:", ":", "1:2:3", "auto", "cpu", "gpu"),
    *("nan", "inf", "1e999", "0.1", "1_0", "0x1", "\u0663", "true", "no", "9" * 400),
    *("c10d", "static", "etcd", "file", "localhost", "h:1", "[::1]:2", "[::1", "h:99999"),
    *("0:3,1:1", "0:3,0:1", "a,b", ",", "=", "a=b", "join_timeout=0", "rank=1,rank=2"),
    *("../x", "a\nb", "a\0b", "\x1b[2J", "\udcff", "${rank}", "$", "${", "3/60s", "3/0s"),
    *("SIGTERM", "SIGKILL", "SIGTERM,", "spawn", "node", "torch", "default", "null"),
]
NAMES = [name for flag in flags() for name in sorted({f"--{flag.name}", f"--{flag.dest}"})]
VARIABLES = sorted({name for flag in flags() for name in flag.variables} | {"PET_X", "PYTHON_EXEC"})
COMMANDS = [[HERE], [HERE, "-x"], ["gone.py"], []]


def judge(words: list[tuple[str, str]], variables: dict[str, str], command: list[str]) -> str:
    """Say how it went; whatever was given, nothing else may happen."""
    given = [f"{name}={value}" for name, value in words]
    try:
        describe(run([*given, *command], **variables))
    except UsageError as error:
        text = str(error)
    except SystemExit as end:  # of argparse: a switch that was given a value, or no script
        return f"exit {end.code}"
    else:
        return "taken"
    return "refused" if text and not {"\n", "\0", "\x1b"}.intersection(text) else repr(text)


@settings(max_examples=300)
@given(
    words=st.lists(st.tuples(st.sampled_from(NAMES), st.text(max_size=12)), max_size=3),
    variables=st.dictionaries(st.sampled_from(VARIABLES), st.text(max_size=12), max_size=3),
)
def test_any_text_is_taken_or_refused_in_one_line(
    words: list[tuple[str, str]], variables: dict[str, str]
) -> None:
    assert judge(words, variables, [HERE]) in {"taken", "refused", "exit 2"}


def test_any_mixture_is_taken_or_refused_in_one_line() -> None:
    seen = set()
    for seed in range(5000):
        rng = random.Random(seed)
        words = [(rng.choice(NAMES), rng.choice(PLAIN)) for _ in range(rng.randrange(4))]
        variables = {rng.choice(VARIABLES): rng.choice(PLAIN) for _ in range(rng.randrange(4))}
        how = judge(words, variables, rng.choice(COMMANDS))
        assert how in {"taken", "refused", "exit 2"}, (seed, how)
        seen.add(how)
    assert seen == {"taken", "refused", "exit 2"}


@pytest.mark.parametrize(
    ("first", "refused"),
    [
        ("#!/bin/sh", True),
        ("#! /usr/bin/env bash", True),
        ("#!/usr/bin/env python3", False),
        ("#!/opt/pypy", False),
        ("import os", False),
        ("", False),
    ],
)
def test_a_script_for_another_interpreter_needs_a_flag(
    tmp_path: Path, first: str, refused: bool
) -> None:
    script = tmp_path / "train"
    script.write_text(f"{first}\n")
    if refused:
        with pytest.raises(UsageError, match="add --no-python to run it as a program") as caught:
            run([str(script)])
        assert f"begins with {first!r}, which is not Python" in str(caught.value)
    else:
        assert isinstance(run([str(script)]).entrypoint, Script)
