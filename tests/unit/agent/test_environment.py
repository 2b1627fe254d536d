"""The worker's environment is the contract of docs/environment.md: no more, no less."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import env
from holdfast.agent.environment import (
    GIVEN,
    KEPT_BACK,
    RoundFacts,
    limits_threads,
    worker_environment,
)
from holdfast.agent.roles import NodeInfo, WorkerRanks, divide
from holdfast.errors import UsageError

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "environment.md"
ERROR_FILE = Path("/logs/attempt_0/1/error.json")
PROGRESS_FILE = Path("/logs/attempt_0/1/progress")
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
FACTS = RoundFacts(
    run_id="train-7",
    master_address="node0",
    master_port=29500,
    restart_count=1,
    max_restarts=3,
    use_agent_store=True,
    signals_to_handle=SIGNALS,
    round=4,
)
NODES = (NodeInfo("ps", 3), NodeInfo("trainer", 2), NodeInfo("trainer", 4))
RANKS = divide(NODES)[2].worker_ranks()[1]
ALONE = divide([NodeInfo("trainer", 1)])[0].worker_ranks()[0]
ALWAYS = {
    "RANK": "6",
    "WORLD_SIZE": "9",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "2",
    "GROUP_WORLD_SIZE": "3",
    "ROLE_NAME": "trainer",
    "ROLE_RANK": "3",
    "ROLE_WORLD_SIZE": "6",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "train-7",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_ERROR_FILE": str(ERROR_FILE),
    "TORCHELASTIC_SIGNALS_TO_HANDLE": SIGNALS,
    "HOLDFAST_ROUND": "4",
    "HOLDFAST_PROGRESS_FILE": str(PROGRESS_FILE),
}


def made(
    base: dict[str, str], ranks: WorkerRanks = RANKS, facts: RoundFacts = FACTS
) -> dict[str, str]:
    return worker_environment(base, ranks, facts, ERROR_FILE, PROGRESS_FILE)


def test_a_worker_of_several_in_an_empty_environment() -> None:
    """EN-1."""
    assert made({}) == {
        **ALWAYS,
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def test_what_is_always_set_beats_what_the_agent_had() -> None:
    """EN-1: an agent may itself be the worker of another."""
    assert made(dict.fromkeys(ALWAYS, "old")) == made({})


def test_the_store_may_be_rank_0s_own() -> None:
    facts = dataclasses.replace(FACTS, use_agent_store=False)
    assert made({}, facts=facts)["TORCHELASTIC_USE_AGENT_STORE"] == "False"


@given(
    st.dictionaries(
        st.text(min_size=1).filter(
            lambda name: name not in {variable.name for variable in GIVEN} | set(KEPT_BACK)
        ),
        st.text(),
    )
)
def test_everything_else_of_the_user_passes_unchanged(base: dict[str, str]) -> None:
    """EN-2."""
    assert made(base) == base | made({})


def test_the_base_is_not_changed() -> None:
    base = {"HOLDFAST_SECRET": "correct-horse-battery", "RANK": "7"}
    made(base)
    assert base == {"HOLDFAST_SECRET": "correct-horse-battery", "RANK": "7"}


def test_the_secret_comes_as_a_file_only() -> None:
    """EN-3."""
    base = {"HOLDFAST_SECRET": "correct-horse-battery", env.WORKER: "{}"}
    assert made(base) == made({})
    facts = dataclasses.replace(FACTS, secret_file=Path("/run/job/secret"))
    found = made(base, facts=facts)
    assert found["HOLDFAST_SECRET_FILE"] == "/run/job/secret"
    assert "correct-horse-battery" not in found.values()
    # What a worker is given, it can read again.
    assert env.read(found).secret_file == Path("/run/job/secret")


def test_a_secret_file_of_the_users_stays() -> None:
    """EN-2."""
    assert made({"HOLDFAST_SECRET_FILE": "/mine"})["HOLDFAST_SECRET_FILE"] == "/mine"


@pytest.mark.parametrize("name", ["TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS"])
@pytest.mark.parametrize("value", ["0", "8", ""])
def test_the_users_value_beats_ours(name: str, value: str) -> None:
    """EN-4."""
    assert made({name: value})[name] == value


def test_one_worker_may_use_every_processor() -> None:
    assert "OMP_NUM_THREADS" not in made({}, ALONE)


@pytest.mark.parametrize(
    ("base", "workers", "limited"),
    [({}, 1, False), ({}, 2, True), ({"OMP_NUM_THREADS": "4"}, 2, False)],
)
def test_the_caller_hears_when_threads_are_limited(
    base: dict[str, str], workers: int, limited: bool
) -> None:
    assert limits_threads(base, workers) is limited


def test_timers_go_where_the_agent_or_else_the_user_says() -> None:
    name = "TORCHELASTIC_TIMER_FILE"
    facts = dataclasses.replace(FACTS, timer_file=Path("/tmp/ours"))
    assert made({name: "/tmp/theirs"}, facts=facts)[name] == "/tmp/ours"
    assert made({name: "/tmp/theirs"})[name] == "/tmp/theirs"
    assert name not in made({})


VIRTUAL = dataclasses.replace(FACTS, virtual_local_rank=True)


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ({"CUDA_VISIBLE_DEVICES": "4, 5 ,6,7"}, {"CUDA_VISIBLE_DEVICES": "5"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, {"CUDA_VISIBLE_DEVICES": "GPU-b"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": ""}),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "3"}),
    ],
)
def test_a_virtual_local_rank_sees_one_device(
    base: dict[str, str], expected: dict[str, str]
) -> None:
    found = made(base, facts=VIRTUAL)
    assert {name: value for name, value in found.items() if "VISIBLE" in name} == expected
    assert found["LOCAL_RANK"] == "0"
    assert found["RANK"] == "6"


def test_a_worker_without_a_device_is_refused() -> None:
    with pytest.raises(UsageError, match=r"CUDA_VISIBLE_DEVICES=0: has no device for local rank 1"):
        made({"CUDA_VISIBLE_DEVICES": "0"}, facts=VIRTUAL)


def test_without_virtual_local_ranks_devices_are_the_users() -> None:
    assert made({"CUDA_VISIBLE_DEVICES": "4,5"})["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert "CUDA_VISIBLE_DEVICES" not in made({})


def test_the_table_names_what_is_given_and_nothing_else() -> None:
    """EN-1."""
    everything = dataclasses.replace(
        VIRTUAL,
        store="tcp://node0:29400",
        timer_file=Path("/tmp/timer"),
        secret_file=Path("/run/job/secret"),
    )
    found = made({}, facts=everything) | made({"HIP_VISIBLE_DEVICES": "0,1"}, facts=everything)
    by_the_group = {env.GROUP}  # by which the agent finds its processes
    assert sorted({*found} | by_the_group) == sorted(variable.name for variable in GIVEN)
    assert {v.name for v in GIVEN if not v.when} == set(ALWAYS) | by_the_group


def test_the_names_are_those_that_the_reader_of_the_environment_knows() -> None:
    assert KEPT_BACK == ("HOLDFAST_SECRET", env.WORKER)
    ours = {v.name: "/x" for v in GIVEN if v.name.startswith(env.PREFIX)}
    env.read(ours)


def test_the_document_has_the_table() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `\w+` \|.*$", text.split("## ")[1], re.MULTILINE)
    assert rows == [
        f"| `{v.name}` | {v.meaning} | `{v.example}` | {v.when or 'always'} |" for v in GIVEN
    ]


def test_the_document_names_what_the_agent_reads() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").split("## ")[2]
    told = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))
    named = re.findall(r"^    ([A-Z_]+)(?:, ([A-Z_]+))?  +\S", env.__doc__ or "", re.MULTILINE)
    assert told == {name for names in named for name in names if name}
