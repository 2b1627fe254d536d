"""The environment is read once, in one place, and misspelt names are refused."""

from __future__ import annotations

import dataclasses
import os
import pickle
import traceback
from pathlib import Path

import pytest

from holdfast.env import (
    GROUP,
    WORKER,
    Environment,
    LogLevel,
    SecretText,
    add_to_path,
    current,
    read,
    variables,
)
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


def test_locals_in_a_traceback_do_not_show_the_secret() -> None:
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


@pytest.mark.parametrize("text", ["", " ", "\n", "\t \r\n\v\f"])
def test_an_empty_secret_is_refused_rather_than_used(text: str) -> None:
    with pytest.raises(UsageError, match="HOLDFAST_SECRET is empty"):
        read({"HOLDFAST_SECRET": text})


@pytest.mark.parametrize("text", [f"{SECRET}\n", f" {SECRET}", f"\t{SECRET}\r\n"])
def test_white_space_around_a_secret_is_no_part_of_it(text: str) -> None:
    """As in a file, from which it is often copied with the end of its line."""
    assert read({"HOLDFAST_SECRET": text}).secret == SECRET
    assert read({"HOLDFAST_SECRET": f"{SECRET}\u00a0"}).secret == f"{SECRET}\u00a0"


def test_a_secret_that_is_not_utf8_is_refused_in_one_line_that_does_not_show_it() -> None:
    for raw in (SECRET.encode() + b"\xff", SECRET.encode() + b"\xc3"):
        with pytest.raises(UsageError) as caught:
            read({"HOLDFAST_SECRET": os.fsdecode(raw)})
        assert str(caught.value) == (
            "HOLDFAST_SECRET is not UTF-8: put it into a file, and name the file in "
            "HOLDFAST_SECRET_FILE"
        )
        assert caught.value.__context__ is None


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
def test_an_unknown_log_level_is_no_error(text: str) -> None:
    assert read({"LOGLEVEL": text}).log_level is LogLevel.INFO


def test_what_torchruns_users_set_has_its_place() -> None:
    found = read(
        {
            "PYTHON_EXEC": "/bin/python",
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}]: ",
            "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
            "TORCHELASTIC_TIMER_FILE": "/tmp/timer",
            "TORCHELASTIC_HEALTH_CHECK_PORT": "8080",
            "TORCHELASTIC_ERROR_FILE": "/tmp/error.json",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "12.5",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
    )
    assert found == Environment(
        python_exec="/bin/python",
        log_line_prefix="[${rank}]: ",
        file_timer=True,
        timer_file=Path("/tmp/timer"),
        health_check_port="8080",
        error_file=Path("/tmp/error.json"),
        shutdown_timeout_s=12.5,
        share_store=False,
    )


def test_what_torchruns_users_set_to_nothing_or_nonsense_counts_as_unset() -> None:
    flags = ("TORCHELASTIC_ENABLE_FILE_TIMER", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
    texts = (
        "PYTHON_EXEC",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
        "TORCHELASTIC_TIMER_FILE",
        "TORCHELASTIC_HEALTH_CHECK_PORT",
        "TORCHELASTIC_ERROR_FILE",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    )
    assert read(dict.fromkeys(flags, "0") | dict.fromkeys(texts, "")) == Environment()


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf"])
def test_an_invalid_shutdown_timeout_is_no_error(text: str) -> None:
    assert read({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": text}).shutdown_timeout_s is None


def test_what_an_agent_tells_its_processes_is_passed_over() -> None:
    assert read({WORKER: "{}", GROUP: "00ff"}) == Environment()


def test_variables_are_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "memory://")
    copy = variables()
    assert copy["HOLDFAST_STORE"] == "memory://"
    copy["HOLDFAST_STORE"] = "tcp://a:1"
    assert current().store == "memory://"


def test_a_folder_is_put_first_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDERS", "/b:/a::/c")
    add_to_path("FOLDERS", "/a")
    assert variables()["FOLDERS"] == "/a:/b:/c"
    monkeypatch.delenv("FOLDERS")
    add_to_path("FOLDERS", "/a")
    assert variables()["FOLDERS"] == "/a"


def test_current_reads_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "file:///tmp/x")
    assert current().store == "file:///tmp/x"
    monkeypatch.delenv("HOLDFAST_STORE")
    assert current().store is None
