"""Which user is at the other end: the kernel's word, and what follows from it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.errors import Refused
from holdfast.net import credentials
from holdfast.net.credentials import (
    Credentials,
    check_peer,
    is_our_user,
    judge,
    peer_credentials,
)

ME, OTHER, GROUP, OVERFLOW = 1000, 1001, 4242, 65534
SOON = 20.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def judged(
    uid: int, *groups: int, me: int = ME, group: int | None = None, all_named: bool = True
) -> str:
    peer = Credentials(1, uid, frozenset(groups))
    return judge(peer, me=me, group=group, overflow_uid=OVERFLOW, all_named=all_named)


def test_the_same_user_is_accepted_and_another_one_is_not() -> None:
    """PC-1."""
    assert judged(ME) == ""
    assert judged(OTHER) == "the peer runs as user 1001: only user 1000 may hold the key"
    assert judged(0) == "the peer runs as user 0: only user 1000 may hold the key"
    assert judged(OTHER, 0, me=0) == "the peer runs as user 1001: only user 0 may hold the key"


def test_a_member_of_the_named_group_is_accepted_and_of_another_one_not() -> None:
    """PC-1."""
    assert judged(OTHER, 1, GROUP, group=GROUP) == ""
    assert judged(OTHER, GROUP) != ""
    why = "the peer runs as user 1001: only user 1000 and group 4242 may hold the key"
    assert judged(OTHER, GROUP + 1, group=GROUP) == why


def test_a_user_without_a_number_here_is_refused_though_the_numbers_agree() -> None:
    """PC-2: unless every user has a number; then the overflow user is one like any other."""
    for refused in (
        judged(OVERFLOW, all_named=False),
        judged(OVERFLOW, me=OVERFLOW, all_named=False),
        judged(OVERFLOW, GROUP, group=GROUP, all_named=False),
    ):
        assert "another user namespace" in refused
        assert "user 65534" in refused
    assert judged(OVERFLOW, me=OVERFLOW) == ""
    assert "runs as user 65534" in judged(OVERFLOW)


def test_the_kernel_gives_our_user_and_group() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = peer_credentials(ours)
        assert found is not None
        assert (found.pid, found.uid) == (os.getpid(), os.geteuid())
        assert found.groups == {os.getegid(), *os.getgroups()}
        check_peer(ours, None)


def test_no_credentials_over_tcp() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
    ):
        assert peer_credentials(sock) is None
        check_peer(sock, None)


def test_pc2_a_number_is_our_users_unless_it_may_stand_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert is_our_user(os.geteuid())
    assert not is_our_user(os.geteuid() + 1)
    monkeypatch.setattr(os, "geteuid", lambda: OVERFLOW)
    monkeypatch.setattr(credentials, "_overflow", lambda kind: OVERFLOW)
    for named in (True, False):
        monkeypatch.setattr(credentials, "_all_users_are_named", lambda named=named: named)
        assert is_our_user(OVERFLOW) is named


# Real users.


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"\0holdfast-test-{os.urandom(8).hex()}")
        sock.listen()
        sock.settimeout(SOON)
        yield sock


CONNECT = """
import os, socket, sys
name, uid, *groups = sys.argv[1:]
os.setgroups([int(group) for group in groups])
os.setgid(int(uid))
os.setuid(int(uid))
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(bytes.fromhex(name))
    sock.recv(1)
"""


def refusal(listener: socket.socket, group: int | None, uid: int, *groups: int) -> str:
    """Return why another user that connects is refused; nothing if it is not."""
    name = os.fsencode(listener.getsockname()).hex()
    command = [sys.executable, "-S", "-c", CONNECT, name, str(uid), *map(str, groups)]
    with subprocess.Popen(command) as child:
        sock, _ = listener.accept()
        with sock:
            try:
                check_peer(sock, group)
            except Refused as error:
                return str(error)
        assert child.wait(SOON) == 0
    return ""


@needs_root
def test_another_user_is_refused_unless_its_group_was_named(listener: socket.socket) -> None:
    assert refusal(listener, None, OTHER, GROUP).startswith("the peer runs as user 1001")
    assert refusal(listener, GROUP, OTHER, 7, GROUP) == ""
    assert refusal(listener, OTHER, OTHER) == ""  # its first group
    assert refusal(listener, GROUP, OTHER, 7) != ""
    assert refusal(listener, OVERFLOW, OVERFLOW) != ""  # stands for every group without a number


INSIDE = """
import os, socket, sys
from holdfast.net.credentials import check_peer
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(bytes.fromhex(sys.argv[1]))
    try:
        check_peer(sock, None)
    except Exception as error:
        print(type(error).__name__, error)
"""


def can_unshare() -> bool:
    """Say whether a user namespace can be made here."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="needs unshare, and the right to make a namespace")
def test_a_peer_of_another_user_namespace_is_refused_with_a_line_that_says_so(
    listener: socket.socket,
) -> None:
    """PC-2: seen from inside, where neither of the two has a number."""
    name = os.fsencode(listener.getsockname()).hex()
    command = ["unshare", "--user", sys.executable, "-c", INSIDE, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
    assert done.stdout.startswith("Refused the peer shows as user 65534"), done
    assert "another user namespace" in done.stdout
