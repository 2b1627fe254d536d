"""The environment is read once, in one place, and misspelt names are refused."""

from __future__ import annotations

import dataclasses
import pickle
import traceback
from pathlib import Path

import pytest

from holdfast.env import Environment, LogLevel, SecretText, current, read
from holdfast.errors import UsageError

SECRET = "correct-horse-battery"


def test_nothing_set_gives_the_defaults() -> None:
    assert read({}) == Environment()


def test_every_variable_has_its_place() -> None:
    found = read(
        {
            "HOLDFAST_SECRET": SECRET,
            "HOLDFAST_STORE": "tcp://a:1",
            "HOLDFAST_ETCD_BINARY": "/bin/etcd",
            "XDG_STATE_HOME": "/state",
            "HOME": "/home/me",
            "LOGLEVEL": "debug",
            "PATH": "/bin",
        }
    )
    assert found == Environment(
        secret=SecretText(SECRET),
        store="tcp://a:1",
        etcd_binary=Path("/bin/etcd"),
        state_dir=Path("/state/holdfast"),
        log_level=LogLevel.DEBUG,
    )


def test_the_secret_is_in_no_representation() -> None:
    environment = read({"HOLDFAST_SECRET": SECRET})
    assert environment.secret == SECRET
    assert SECRET not in repr(environment)
    assert SECRET not in str(environment)
    assert SECRET not in f"{dataclasses.replace(environment, store='memory://')}"


def test_the_secret_shows_nowhere_and_is_in_no_pickle() -> None:
    environment = read({"HOLDFAST_SECRET": SECRET})
    secret = environment.secret
    assert {repr(secret), str(secret), f"{secret}", f"{secret!r}", "%s" % secret} == {"<Secret>"}  # noqa: UP031
    assert repr([secret, {secret: secret}]) == "[<Secret>, {<Secret>: <Secret>}]"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="a secret cannot be pickled"):
            pickle.dumps(environment, protocol)
        with pytest.raises(TypeError, match="a secret cannot be pickled"):
            pickle.dumps(secret, protocol)


def test_who_shows_locals_does_not_find_the_secret() -> None:
    class Variables(dict[str, str]):
        def __repr__(self) -> str:
            return "<variables>"

    with pytest.raises(UsageError, match="only one is allowed") as caught:
        read(Variables({"HOLDFAST_SECRET": SECRET, "HOLDFAST_SECRET_FILE": "/run/secret"}))
    for frame, _ in traceback.walk_tb(caught.value.__traceback__.tb_next):  # type: ignore[union-attr]
        assert SECRET not in repr(frame.f_locals)


def test_it_is_frozen_and_travels() -> None:
    environment = read({"HOLDFAST_SECRET_FILE": "/run/secret"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        environment.store = "x"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(environment)) == environment


def test_a_misspelt_name_is_refused_with_the_right_one() -> None:
    with pytest.raises(
        UsageError, match=r"HOLDFAST_SECRT: unknown; did you mean HOLDFAST_SECRET\?"
    ) as caught:
        read({"HOLDFAST_SECRT": SECRET})
    assert SECRET not in str(caught.value)


def test_a_strange_name_is_refused_with_the_list() -> None:
    with pytest.raises(UsageError, match=r"HOLDFAST_X: unknown; known are HOLDFAST_SECRET, "):
        read({"HOLDFAST_X": "1"})


def test_two_secrets_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="only one is allowed") as caught:
        read({"HOLDFAST_SECRET": SECRET, "HOLDFAST_SECRET_FILE": "/run/secret"})
    assert SECRET not in str(caught.value)


def test_an_empty_secret_is_refused_rather_than_used() -> None:
    with pytest.raises(UsageError, match="HOLDFAST_SECRET is empty"):
        read({"HOLDFAST_SECRET": ""})


def test_other_empty_variables_count_as_unset() -> None:
    names = ("HOLDFAST_SECRET_FILE", "HOLDFAST_STORE", "HOLDFAST_ETCD_BINARY")
    assert read(dict.fromkeys(names, "")) == Environment()


def test_our_name_for_the_etcd_binary_beats_the_compatible_one() -> None:
    both = {"HOLDFAST_ETCD_BINARY": "/ours", "TORCHELASTIC_ETCD_BINARY_PATH": "/theirs"}
    assert read(both).etcd_binary == Path("/ours")
    del both["HOLDFAST_ETCD_BINARY"]
    assert read(both).etcd_binary == Path("/theirs")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HOME": "/home/me"}, Path("/home/me/.local/state/holdfast")),
        (
            {"HOME": "/home/me", "XDG_STATE_HOME": "relative"},
            Path("/home/me/.local/state/holdfast"),
        ),
        ({"HOME": "/home/me", "XDG_STATE_HOME": ""}, Path("/home/me/.local/state/holdfast")),
        ({"HOME": "relative"}, None),
        ({"HOME": ""}, None),
    ],
)
def test_where_the_state_lies(variables: dict[str, str], expected: Path | None) -> None:
    assert read(variables).state_dir == expected


@pytest.mark.parametrize("text", ["", "trace", "17", "WARN"])
def test_a_log_level_of_others_stops_nobody(text: str) -> None:
    assert read({"LOGLEVEL": text}).log_level is LogLevel.INFO


def test_current_reads_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "file:///tmp/x")
    assert current().store == "file:///tmp/x"
    monkeypatch.delenv("HOLDFAST_STORE")
    assert current().store is None
