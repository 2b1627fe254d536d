"""Lists of hosts: what is read, and one line for what is none."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.on.hostlist import HOSTS_MAX, Host, expand, parse_host_file, parse_hosts


def test_hosts_users_and_workers() -> None:
    assert parse_hosts("a, b:8,ann@c.example:2,[fd00::1],x@[fd00::2]:3") == (
        Host("a"),
        Host("b", workers=8),
        Host("c.example", "ann", 2),
        Host("fd00::1"),
        Host("fd00::2", "x", 3),
    )
    assert Host("c", "ann").target == "ann@c"
    assert Host("c").target == "c"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "host '': must be [USER@]HOST[:WORKERS]"),
        ("a,,b", "host '': must be"),
        ("a b", "host 'a b': must be"),
        ("a:", "'' must be a number of workers from 1 to 9999"),
        ("a:0", "'0' must be a number of workers"),
        ("a:10000", "'10000' must be a number"),
        ("fd00::1", "host 'fd00::1': must be"),
        ("-oProxyCommand=x", "host '-oProxyCommand=x': must not begin with '-'"),
        ("x@-o", "host 'x@-o': must not begin with '-'"),
        ("-l x@a", "host '-l x@a': '-l x' must be the name of a user"),
        ("@a", "host '@a': '' must be the name of a user"),
        ("a,b,a:2", "host 'a': is there twice; a:2 has two workers"),
    ],
)
def test_what_is_no_list_of_hosts(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hosts(text)
    assert str(caught.value).startswith(message)


def test_so_many_hosts_and_no_more() -> None:
    names = [f"n{number}" for number in range(HOSTS_MAX + 1)]
    assert len(parse_hosts(",".join(names[:-1]))) == HOSTS_MAX
    with pytest.raises(UsageError, match=f"at most {HOSTS_MAX}"):
        parse_hosts(",".join(names))
    assert len(expand(f"n[1-{HOSTS_MAX}]")) == HOSTS_MAX
    with pytest.raises(UsageError, match=f"more than {HOSTS_MAX}"):
        expand("n[1-999999999]")


def test_a_host_file() -> None:
    text = "# all\n\na slots=4  # four\n  b:2\nann@c\n"
    assert parse_host_file(text) == (Host("a", workers=4), Host("b", workers=2), Host("c", "ann"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# none\n", "it names no host; write one on each line"),
        ("a\nb c\n", "line 2: 'c': after a host only slots=N is allowed, once"),
        ("a:2 slots=2", "line 1: 'slots=2': after a host"),
        ("a slots=x", "line 1: 'x' must be a number of workers"),
        ("a\na", "host 'a': is there twice"),
    ],
)
def test_what_is_no_host_file(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_host_file(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", "a"),
        ("a,b1", "a b1"),
        ("n[1-3,07],m", "n1 n2 n3 n07 m"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("r[1-2]n[1-2].x", "r1n1.x r1n2.x r2n1.x r2n2.x"),
    ],
)
def test_slurms_short_form(text: str, names: str) -> None:
    assert expand(text) == tuple(names.split())


@pytest.mark.parametrize("text", ["", "a,", "n[1", "n]1", "n[]", "n[a-b]", "n[1-]", "n[-3]"])
def test_what_is_no_short_form(text: str) -> None:
    with pytest.raises(UsageError, match="^host list "):
        expand(text)
