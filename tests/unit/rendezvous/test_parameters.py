"""What a user may say, and the one line that a mistake costs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.rendezvous import parameters as module
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.parameters import CONFIG_KEYS, RendezvousParameters, parse_config


def params(backend: str = "c10d", **changes: Any) -> RendezvousParameters:
    given: dict[str, Any] = {
        "backend": backend,
        "endpoint": "localhost:29400",
        "run_id": "job",
        "min_nodes": 2,
        "max_nodes": 4,
    }
    return RendezvousParameters(**given | changes)


def test_nothing_configured_means_torchs_numbers() -> None:
    said = params()
    assert said.rules() == Rules(
        min_nodes=2, max_nodes=4, join_s=600, last_call_s=30, keep_alive_s=5, lease_s=15
    )
    assert (said.close_s, said.heartbeat_s, said.read_s, said.run) == (30, 5, 60, "job")


@pytest.mark.parametrize(
    ("config", "change"),
    [
        ({"join_timeout": "70"}, {"join_s": 70}),
        ({"timeout": 900}, {"join_s": 900}),
        ({"timeout": "900", "join_timeout": "80.5"}, {"join_s": 80.5}),
        ({"join_timeout": "", "timeout": None}, {}),
        ({"last_call_timeout": "0"}, {"last_call_s": 0}),
        ({"join_timeout": "5"}, {"join_s": 5, "last_call_s": 2.5}),  # a default gives way
        ({"last_call_timeout": "700"}, {"join_s": 1400, "last_call_s": 700}),
        ({"keep_alive_interval": "2"}, {"keep_alive_s": 2, "lease_s": 6}),
        ({"keep_alive_max_attempt": 10}, {"lease_s": 50}),
        ({"keep_alive_max_attempt": "1"}, {"keep_alive_s": 2.5, "lease_s": 5}),
    ],
)
def test_each_rule_can_be_set(config: dict[str, Any], change: dict[str, float]) -> None:
    numbers: dict[str, Any] = {"min_nodes": 2, "max_nodes": 4} | change
    assert params(config=config).rules() == Rules(**numbers)


def test_the_other_limits_can_be_set() -> None:
    said = params(config={"close_timeout": "1", "heartbeat_timeout": "2", "read_timeout": "3"})
    assert (said.close_s, said.heartbeat_s, said.read_s) == (1, 2, 3)
    assert params(config={"heartbeat": "2"}).heartbeat_s == 2


@pytest.mark.parametrize("backend", sorted(CONFIG_KEYS))
def test_the_table_in_the_docstring_has_every_key(backend: str) -> None:
    told = set(re.findall(r"\b[a-z_]+\b", module.__doc__ or ""))
    assert told >= CONFIG_KEYS[backend]


TORCHS = {
    "c10d": "join_timeout last_call_timeout close_timeout heartbeat_timeout keep_alive_interval "
    "keep_alive_max_attempt read_timeout is_host store_type timeout",
    "etcd": "protocol cert key cacert etcd_prefix timeout last_call_timeout",
    "etcd-v2": "read_timeout protocol ssl_cert ssl_cert_key ca_cert join_timeout timeout",
    "static": "rank timeout",
}


@pytest.mark.parametrize("backend", sorted(TORCHS))
def test_torchs_keys_are_known(backend: str) -> None:
    assert set(TORCHS[backend].split()) <= CONFIG_KEYS[backend]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": ""}, "rendezvous backend '': a name such as c10d or etcd is needed"),
        ({"backend": None}, "rendezvous backend None: must be a str, not NoneType"),
        ({"endpoint": 29400}, "rendezvous endpoint 29400: must be a str, not int"),
        ({"run_id": ""}, "run id '': 1 to 128 letters"),
        ({"run_id": "a/b"}, "run id 'a/b': 1 to 128 letters"),
        ({"run_id": ".a"}, "run id '.a': must not begin with '.'"),
        ({"run_id": None}, "run id None: must be a str"),
        ({"min_nodes": 0}, "nodes 0:4: must be MIN:MAX with 1 <= MIN <= MAX"),
        ({"min_nodes": 5}, "nodes 5:4: must be MIN:MAX with 1 <= MIN <= MAX"),
        ({"max_nodes": -1}, "nodes 2:-1: must be MIN:MAX"),
        ({"min_nodes": "2"}, "nodes '2':4: must be MIN:MAX"),
        ({"max_nodes": 2.5}, "nodes 2:2.5: must be MIN:MAX"),
        ({"min_nodes": True}, "nodes True:4: must be MIN:MAX"),
        ({"local_addr": ""}, "local address '': must be a host name or an IP address"),
        ({"local_addr": "1.2.3.4:80"}, "local address '1.2.3.4:80': must be a host name"),
        ({"local_addr": "a b"}, "local address 'a b': must be a host name"),
        ({"local_addr": 7}, "local address 7: must be a host name"),
    ],
)
def test_what_is_wrong_costs_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        params(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("join_timeout", "-1", "rendezvous join_timeout -1.0: must be zero or more seconds"),
        ("timeout", "nan", "rendezvous timeout nan: must be zero or more seconds"),
        ("last_call_timeout", "inf", "rendezvous last_call_timeout 'inf': must be finite"),
        ("close_timeout", "soon", "rendezvous close_timeout 'soon': must be a number of seconds"),
        ("read_timeout", "1e99", "rendezvous read_timeout '1e99': must be finite"),
        ("heartbeat_timeout", [5], "rendezvous heartbeat_timeout [5]: must be text or a number"),
        ("heartbeat", "-2", "rendezvous heartbeat -2.0: must be zero or more seconds"),
        ("heartbeat", "0", "rendezvous heartbeat_timeout 0: must be more than 0 seconds"),
        ("read_timeout", 0, "rendezvous read_timeout 0: must be more than 0 seconds"),
        ("keep_alive_interval", "0", "keep-alive every 0 s, 3 attempts: both must be positive"),
        ("keep_alive_interval", "1e6", "keep-alive every 1e+06 s for a lease of 3e+06 s"),
        ("keep_alive_max_attempt", "0", "keep-alive every 5 s, 0 attempts: both must be positive"),
        (
            "keep_alive_max_attempt",
            "2.5",
            "rendezvous keep_alive_max_attempt '2.5': must be a whole",
        ),
        ("keep_alive_max_attempt", "-1", "rendezvous keep_alive_max_attempt '-1': must be a whole"),
        ("keep_alive_max_attempt", "٣", "rendezvous keep_alive_max_attempt '٣': must be a whole"),
        ("keep_alive_max_attempt", "9" * 5000, "rendezvous keep_alive_max_attempt '999"),
        (
            "joint_timeout",
            "1",
            "rendezvous configuration 'joint_timeout': unknown for c10d; did you",
        ),
        (
            "cacert",
            "1",
            "rendezvous configuration 'cacert': unknown for c10d; known: close_timeout, ",
        ),
        (7, "1", "rendezvous configuration 7: unknown for c10d"),
    ],
)
def test_a_wrong_configuration_costs_one_line(name: Any, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        params(config={name: value})
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 300


def test_a_last_call_ends_before_the_time_to_join_does() -> None:
    with pytest.raises(UsageError) as caught:
        params(config={"join_timeout": 30, "last_call_timeout": "30"})
    assert str(caught.value).startswith(
        "rendezvous last_call_timeout 30: must be less than join_timeout 30, or a round of "
    )


def test_a_fixed_number_of_nodes_needs_no_last_call() -> None:
    assert params(min_nodes=4, config={"join_timeout": 30}).rules().join_s == 30


def test_a_misspelt_key_gets_a_hint() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'last_call_timeout'\?$"):
        params(config={"last_call_timout": "1"})


def test_a_third_party_backend_checks_its_own_configuration() -> None:
    said = params("theirs", config={"anything": "x", "join_timeout": "soon"})
    assert said.text("anything") == "x"


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        *(("1", True), ("TRUE", True), ("y", True), (True, True), ("0", False), ("No", False)),
        *(("f", False), (False, False), (0, False), ("", None), (None, None)),
    ],
)
def test_flags(value: Any, meant: bool | None) -> None:
    assert params(config={"is_host": value}).flag("is_host") is meant


def test_a_flag_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"^rendezvous is_host 'maybe': must be true or false$"):
        params(config={"is_host": "maybe"}).flag("is_host")


@pytest.mark.parametrize("address", ["10.0.0.1", "node-7.cluster", "::1", "fe80::1%eth0"])
def test_local_addresses(address: str) -> None:
    assert params(local_addr=address).local_addr == address


def test_configuration_as_text() -> None:
    assert parse_config("") == {}
    assert parse_config("a=1, b = x=y ,,c=") == {"a": "1", "b": "x=y", "c": ""}
    assert parse_config("'a=1,b=2'") == parse_config('"a"=\'1\', "b=2"') == {"a": "1", "b": "2"}
    for wrong in ("a", "=1", "a=1,b"):
        with pytest.raises(UsageError, match="must be key=value$"):
            parse_config(wrong)
