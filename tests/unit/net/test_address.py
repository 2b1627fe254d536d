"""Addresses and endpoints: what is read, what is refused, and that printing gives it back."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.net.address import (
    Address,
    Endpoint,
    is_loopback,
    parse_address,
    parse_endpoint,
    parse_listen,
)

# Text that looks much like an endpoint gets further into the parser than random text.
PIECES = st.sampled_from(
    (
        *("tcp://", "file://", "a", "host", "127.0.0.1", "[::1]", "[fe80::1%eth0]", ":", ":80"),
        *("0080", ",", "/", "//", "?", "=", "&", "x=1", "%", "[", "]", "::", ".", "-", "_", " "),
        *("\n", "é", "\0"),
    )
)
TEXTS = st.text() | st.lists(PIECES, max_size=12).map("".join)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:29400", Address("127.0.0.1", 29400)),
        ("localhost:0", Address("localhost", 0)),
        ("a:65535", Address("a", 65535)),
        ("a:00080", Address("a", 80)),
        ("node-1.rack_2.example.:80", Address("node-1.rack_2.example.", 80)),
        ("[::1]:29400", Address("::1", 29400)),
        ("[fe80::1%eth0]:1", Address("fe80::1%eth0", 1)),
        ("[::ffff:10.0.0.1]:1", Address("::ffff:10.0.0.1", 1)),
    ],
)
def test_an_address_is_read(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "a port is missing"),
        ("host", "a port is missing"),
        ("[::1]", "a port is missing"),
        ("host:", "must be a number from 0 to 65535"),
        ("host:x", "must be a number from 0 to 65535"),
        ("host:-1", "must be a number from 0 to 65535"),
        ("host:+1", "must be a number from 0 to 65535"),
        ("host: 1", "must be a number from 0 to 65535"),
        ("host:1\n", "must be a number from 0 to 65535"),
        ("host:65536", "must be a number from 0 to 65535"),
        ("host:0000000080", "must be a number from 0 to 65535"),
        ("host:٣", "must be a number from 0 to 65535"),
        ("host:²", "must be a number from 0 to 65535"),
        ("host:" + "9" * 5000, "must be a number from 0 to 65535"),
        (":80", "must be a host name"),
        ("-a:80", "must be a host name"),
        ("a-:80", "must be a host name"),
        ("a b:80", "must be a host name"),
        ("a\n:80", "must be a host name"),
        ("é:80", "must be a host name"),
        ("a" * 254 + ":80", "must be a host name"),
        ("::1:80", "put an IPv6 address in brackets"),
        ("[::1:80", "is written [::1]:29400"),
        ("[::1]80", "is written [::1]:29400"),
        ("[host]:80", "is written [::1]:29400"),
        ("[]:80", "is written [::1]:29400"),
        ("[::g]:80", "is no IPv6 address"),
        ("[1:2]:80", "is no IPv6 address"),
        ("[fe80::1%]:80", "must be an interface"),
        ("[fe80::1%a\nb]:80", "must be an interface"),
        ("[fe80::1%a%b]:80", "must be an interface"),
    ],
)
def test_what_is_no_address_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    message = str(caught.value)
    assert complaint in message
    assert "\n" not in message
    assert len(message) < 400


def test_the_default_port_is_used_only_where_there_is_none() -> None:
    assert parse_address("host", 1) == Address("host", 1)
    assert parse_address("[::1]", 1) == Address("::1", 1)
    assert parse_address("host:2", 1) == Address("host", 2)
    with pytest.raises(UsageError):
        parse_address("host:", 1)


@pytest.mark.parametrize("value", [None, 7, b"tcp://a:1", ("a", 1)])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="must be a str"):
        parse_address(cast("str", value))
    with pytest.raises(UsageError, match="must be a str"):
        parse_endpoint(cast("str", value))


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("memory://", Endpoint("memory")),
        ("tcp://127.0.0.1:1", Endpoint("tcp", (Address("127.0.0.1", 1),))),
        ("tcp://[::1]:1/job", Endpoint("tcp", (Address("::1", 1),), "job")),
        (
            "etcd://a:1,b:2/x/y?timeout=3&tls=",
            Endpoint(
                "etcd",
                (Address("a", 1), Address("b", 2)),
                "x/y",
                {"timeout": "3", "tls": ""},
            ),
        ),
        ("file:///var/tmp/job", Endpoint("file", (), "/var/tmp/job")),
        ("x+y-z.1://?a=b=c?d", Endpoint("x+y-z.1", (), "", {"a": "b=c?d"})),
    ],
)
def test_an_endpoint_is_read_and_printed(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must be scheme://"),
        ("127.0.0.1:29400", "must be scheme://"),
        ("TCP://a:1", "must be scheme://"),
        ("1tcp://a:1", "must be scheme://"),
        (" tcp://a:1", "must be scheme://"),
        ("tcp://a:1\n", "control characters"),
        ("file:///a\0b", "control characters"),
        ("tcp://a", "a port is missing"),
        ("tcp://a:1,", "a port is missing"),
        ("tcp://a:1?x", "must be name=value"),
        ("tcp://a:1?=x", "must be name=value"),
        ("tcp://a:1?x=1&x=2", "each name once"),
        ("tcp://a:1?x=1&", "must be name=value"),
    ],
)
def test_what_is_no_endpoint_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoint(text)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@given(TEXTS)
def test_any_text_is_an_address_that_prints_back_or_a_usage_error(text: str) -> None:
    try:
        address = parse_address(text)
    except UsageError:
        return
    assert 0 <= address.port <= 65535
    assert parse_address(str(address)) == address


@given(TEXTS | TEXTS.map(lambda text: "tcp://" + text))
def test_any_text_is_an_endpoint_that_prints_back_or_a_usage_error(text: str) -> None:
    try:
        endpoint = parse_endpoint(text)
    except UsageError:
        return
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.255.255.254", "::1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        *("", "0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "fe80::1", "example.org", "LOCALHOST"),
        *("localhost.evil.org", "127.1", "127.0.0.1.nip.io", "2130706433", "0x7f000001"),
        "127.0.0.1\n",
    ],
)
def test_what_only_looks_like_loopback_is_none(host: str) -> None:
    assert not is_loopback(host)


def test_where_to_listen() -> None:
    assert parse_listen("9100") == Address("127.0.0.1", 9100)
    assert parse_listen("0.0.0.0:0") == Address("0.0.0.0", 0)
    assert parse_listen("[::1]:80") == Address("::1", 80)


@pytest.mark.parametrize("text", ["", "x", "-1", "65536", "a:b:c", "host:", 7])
def test_what_is_no_place_to_listen_is_refused_in_one_line(text: Any) -> None:
    with pytest.raises(UsageError) as caught:
        parse_listen(text)
    assert str(caught.value) == (
        f"{text!r}: must be a port of loopback from 0 to 65535, or host:port"
    )
