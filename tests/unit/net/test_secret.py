"""Secrets: made once, for one user, refused if others could have read them, and never shown."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import Refused, UsageError
from holdfast.net.secret import (
    SECRET_BYTES_MIN,
    Secret,
    new_secret,
    read_secret_file,
    user_secret,
)

CANARY = "canary-7f3a91c5e2d84b06"
NOBODY = 65534
FILE_BYTES_MAX = 4096
PROCESSES = 12

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def put(path: Path, data: bytes = CANARY.encode(), mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def read_own(path: Path) -> Secret:
    """Read as `user_secret` does, which is stricter than `read_secret_file`."""
    assert path.name == "secret"
    return user_secret(path.parent)


BOTH = pytest.mark.parametrize("read", [read_secret_file, read_own])
Read = Callable[[Path], Secret]


# Where it comes from.


def test_new_secrets_are_long_and_differ() -> None:
    revealed = {new_secret().reveal() for _ in range(100)}
    assert len(revealed) == 100
    assert {len(text) for text in revealed} == {64}


def test_a_short_secret_is_refused_and_not_shown() -> None:
    short = CANARY[: SECRET_BYTES_MIN - 1]
    with pytest.raises(UsageError, match="secret of 15 bytes: at least 16 are needed") as caught:
        Secret(short.encode())
    assert short not in str(caught.value)
    assert Secret(CANARY[:SECRET_BYTES_MIN].encode()).reveal() == CANARY[:SECRET_BYTES_MIN]


def test_the_first_use_makes_a_file_for_this_user_only(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state"
    secret = user_secret(state)
    assert user_secret(state) == secret
    assert stat.S_IMODE((state / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert os.listdir(state) == ["secret"]
    assert len(secret.reveal()) == 64


def test_the_secret_is_on_the_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str | int] = []
    fsync, link = os.fsync, os.link

    def watched_fsync(fd: int) -> None:
        done.append(os.fstat(fd).st_size)
        fsync(fd)

    def watched_link(source: Path, target: Path) -> None:
        done.append("link")
        link(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    user_secret(tmp_path)
    assert done == [65, "link"]


def test_a_permissive_umask_changes_nothing(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        user_secret(tmp_path / "state")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state" / "secret").stat().st_mode) == 0o600


def test_many_processes_that_make_it_at_once_get_the_same(tmp_path: Path) -> None:
    state = tmp_path / "state"
    code = (
        "import sys; from pathlib import Path; from holdfast.net.secret import user_secret\n"
        "print('ready', flush=True); sys.stdin.read()\n"
        "print(user_secret(Path(sys.argv[1])).key('test').hex())"
    )
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(state)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    for process in crowd:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in crowd:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    keys = {process.communicate(timeout=60)[0].strip() for process in crowd}
    assert [process.returncode for process in crowd] == [0] * PROCESSES
    assert keys == {user_secret(state).key("test").hex()}
    assert os.listdir(state) == ["secret"]


def test_a_process_that_looked_too_early_takes_the_file_that_another_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file appears between looking for it and making it."""
    put(tmp_path / "secret")
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    assert user_secret(tmp_path).reveal() == CANARY
    assert os.listdir(tmp_path) == ["secret"]


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    put(tmp_path / "secret", b"  " + CANARY.encode() + b" \n")
    assert user_secret(tmp_path).reveal() == CANARY


# What is refused.


@BOTH
@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o620, 0o666, 0o777])
def test_a_file_that_others_can_get_at_is_refused(tmp_path: Path, read: Read, mode: int) -> None:
    path = put(tmp_path / "secret", mode=mode)
    with pytest.raises(Refused, match=f"secret: mode {mode:04o} lets others at it; run chmod 600"):
        read(path)


def test_a_group_may_read_a_file_that_was_named_but_not_the_users_own(tmp_path: Path) -> None:
    path = put(tmp_path / "secret", mode=0o640)
    shared = read_secret_file(path)
    assert shared.reveal() == CANARY
    assert shared.group == shared.key("store").group == path.stat().st_gid
    with pytest.raises(Refused, match="mode 0640"):
        user_secret(tmp_path)


@BOTH
def test_a_group_that_cannot_read_the_file_may_not_hold_the_secret(
    tmp_path: Path, read: Read
) -> None:
    secret = read(put(tmp_path / "secret", mode=0o600))
    assert secret.group is secret.key("store").group is None


@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_the_users_own_file_must_not_be_a_link(tmp_path: Path, target: str) -> None:
    put(tmp_path / "elsewhere")
    (tmp_path / "secret").symlink_to(tmp_path / target)
    with pytest.raises(Refused, match="must not be a symbolic link"):
        user_secret(tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_a_file_that_was_named_may_be_a_link(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert read_secret_file(tmp_path / "link").reveal() == CANARY


@BOTH
def test_a_fifo_is_refused_without_waiting_for_its_writer(tmp_path: Path, read: Read) -> None:
    os.mkfifo(tmp_path / "secret", 0o600)
    with pytest.raises(Refused, match="must be a regular file"):
        read(tmp_path / "secret")


@BOTH
def test_a_directory_is_refused(tmp_path: Path, read: Read) -> None:
    (tmp_path / "secret").mkdir(0o700)
    with pytest.raises(Refused, match="must be a regular file"):
        read(tmp_path / "secret")


def test_a_device_is_refused() -> None:
    with pytest.raises(Refused, match="must be a regular file"):
        read_secret_file(Path("/dev/zero"))


@BOTH
@pytest.mark.parametrize(
    "data", [b"", b"\n", b" " * 100, b"x" * (SECRET_BYTES_MIN - 1), b"x" * (FILE_BYTES_MAX + 1)]
)
def test_a_file_that_is_too_short_or_too_long_is_refused(
    tmp_path: Path, read: Read, data: bytes
) -> None:
    path = put(tmp_path / "secret", data)
    with pytest.raises(Refused, match="must hold 16 to 4096 bytes"):
        read(path)


def test_of_a_huge_file_little_is_read(tmp_path: Path) -> None:
    path = put(tmp_path / "secret")
    os.truncate(path, 2**40)
    with pytest.raises(Refused, match="must hold 16 to 4096 bytes"):
        read_secret_file(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="gone: No such file or directory"):
        read_secret_file(tmp_path / "gone")


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    put(tmp_path / "file")
    with pytest.raises(Refused, match="file/secret: "):
        user_secret(tmp_path / "file")


# Other users.


@needs_root
@BOTH
def test_a_file_of_another_user_is_refused(tmp_path: Path, read: Read) -> None:
    path = put(tmp_path / "secret")
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(Refused, match=f"belongs to user {NOBODY}, not to you"):
        read(path)


def as_nobody(code: str, directory: Path) -> str:
    """Run code as another user, in a directory that this user can enter; return what it prints."""
    become = (
        "import os\n"
        "from pathlib import Path\n"
        "from holdfast.errors import Refused\n"
        "from holdfast.net.secret import read_secret_file, user_secret\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", become + code],
        cwd=directory,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.stdout


@needs_root
def test_another_user_does_not_get_this_users_secret(tmp_path: Path) -> None:
    """Not even if the directory is open to all (X13)."""
    tmp_path.chmod(0o755)
    secret = user_secret(tmp_path)
    said = as_nobody(
        "for read, path in (user_secret, '.'), (read_secret_file, 'secret'):\n"
        "    try: print(read(Path(path)).reveal())\n"
        "    except Refused as error: print(error)",
        tmp_path,
    )
    assert said.splitlines() == ["secret file secret: Permission denied"] * 2
    assert secret.reveal() not in said


@needs_root
def test_users_have_secrets_of_their_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    said = as_nobody("print(user_secret(Path('theirs')).reveal())", tmp_path)
    assert said.strip() != user_secret(tmp_path / "ours").reveal()
    with pytest.raises(Refused, match=f"belongs to user {NOBODY}"):
        user_secret(tmp_path / "theirs")


# It shows nowhere.


def boom(secret: Secret) -> None:
    local = [secret]
    raise RuntimeError(f"failed with {local} and {secret}")


def test_a_secret_does_not_show(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(CANARY.encode())
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>40}",
        str([secret]),
    ]
    try:
        boom(secret)
    except RuntimeError as error:
        shown.append("".join(traceback.format_exception(error)))
        detailed = traceback.TracebackException.from_exception(error, capture_locals=True)
        shown.append("".join(detailed.format()))
        logging.getLogger("holdfast.test").exception("with %s", secret)
    shown.append(caplog.text)
    assert all("<Secret>" in text for text in shown)
    assert not any(CANARY in text for text in shown)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_cannot_be_pickled(protocol: int) -> None:
    with pytest.raises(TypeError, match="a secret cannot be pickled"):
        pickle.dumps(Secret(CANARY.encode()), protocol)


def test_locals_in_a_traceback_show_no_secret_that_was_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "secret", b"hunter2")
    with pytest.raises(Refused, match="must hold 16 to 4096 bytes") as of_file:
        read_secret_file(path)
    with pytest.raises(UsageError, match="secret of 7 bytes") as of_value:
        Secret(path.read_bytes())
    for caught in (of_file, of_value):
        frames = [*traceback.walk_tb(caught.tb)][1:]
        assert frames
        assert not any("hunter2" in repr(frame.f_locals) for frame, _ in frames)


def test_a_secret_cannot_be_copied_or_listed() -> None:
    secret = Secret(CANARY.encode())
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            duplicate(secret)
    with pytest.raises(TypeError):
        vars(secret)


def test_equality_is_of_the_bytes() -> None:
    one, same, other = Secret(CANARY.encode()), Secret(CANARY.encode()), new_secret()
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != CANARY.encode()
    assert one.key("store") == same.key("store") != one.key("rpc")
