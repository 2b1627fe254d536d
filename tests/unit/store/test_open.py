"""From an endpoint to a store: the right backend, the right secret, and nothing for a wrong one."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import env
from holdfast.env import Environment, SecretText
from holdfast.errors import Refused, Step, StoreUnavailable, UsageError
from holdfast.net.address import Address
from holdfast.net.secret import new_secret
from holdfast.store.client import RemoteStore
from holdfast.store.open import choose_secret, open_store, parse_store_endpoint, serve_store
from tests.unit.net.certificates import Certificates

LOOPBACK = Address("127.0.0.1", 1)
SCHEMES = "memory, file, tcp, etcd, etcd-v2, c10d"


@pytest.fixture
def user(tmp_path: Path) -> Environment:
    """A user who has never used holdfast."""
    return Environment(state_dir=tmp_path / "state")


def untouched(user: Environment) -> bool:
    assert user.state_dir is not None
    return not user.state_dir.exists()


BAD_TO_OPEN = [
    ("", "endpoint '': must be scheme://…, such as tcp://127.0.0.1:29400"),
    ("127.0.0.1:1", "endpoint '127.0.0.1:1': must be scheme://…, such as tcp://127.0.0.1:29400"),
    (
        "://",
        f"endpoint '://': scheme '' is unknown; known are {SCHEMES}",
    ),
    ("x://h:1", f"endpoint 'x://h:1': scheme 'x' is unknown; known are {SCHEMES}"),
    ("tcp://", "endpoint 'tcp://': write tcp://host:port,…[/prefix]"),
    ("tcp:///x", "endpoint 'tcp:///x': write tcp://host:port,…[/prefix]"),
    ("tcp://h", "address 'h': a port is missing; write host:port"),
    ("tcp://h:", "address 'h:': port '' must be a number from 0 to 65535"),
    ("tcp://h:x", "address 'h:x': port 'x' must be a number from 0 to 65535"),
    ("tcp://h:65536", "address 'h:65536': port '65536' must be a number from 0 to 65535"),
    ("tcp://h:-1", "address 'h:-1': port '-1' must be a number from 0 to 65535"),
    ("tcp://127.0.0.1:0", "endpoint 'tcp://127.0.0.1:0': port 0 is for serving, not for opening"),
    ("tcp://a:1,b:2?x=1", "endpoint 'tcp://a:1,b:2?x=1': write tcp://host:port,…[/prefix]"),
    (
        "tcp://127.0.0.1:1?retry=1",
        "endpoint 'tcp://127.0.0.1:1?retry=1': write tcp://host:port,…[/prefix]",
    ),
    (
        "tcp://127.0.0.1:1?retry",
        "endpoint 'tcp://127.0.0.1:1?retry': option 'retry' must be name=value, each name once",
    ),
    ("tcp://127.0.0.1:1\n", r"endpoint 'tcp://127.0.0.1:1\n': must not contain control characters"),
    (
        "tcp://127.0.0.1:1/a\x1b[2J",
        r"endpoint 'tcp://127.0.0.1:1/a\x1b[2J': must not contain control characters",
    ),
    (
        "tcp://127.0.0.1:1/" + "p" * 8192,
        f"prefix '{'p' * 40}'…: 8193 bytes, at most 8192 are allowed",
    ),
    ("memory://h:1", "endpoint 'memory://h:1': write memory://"),
    ("memory:///x", "endpoint 'memory:///x': write memory://"),
    ("file://", "endpoint 'file://': write file:///absolute/path"),
    ("file:///", "endpoint 'file:///': write file:///absolute/path"),
    ("file://h:1/x", "endpoint 'file://h:1/x': write file:///absolute/path"),
    ("file://relative", "endpoint 'file://relative': write file:///absolute/path"),
    ("file:///x?sync=1", "endpoint 'file:///x?sync=1': write file:///absolute/path"),
    ("etcd://", "endpoint 'etcd://': write etcd://host:port,…[/prefix][?options]"),
    (
        "etcd://h:1?user=me",
        (
            "endpoint 'etcd://h:1?user=me': option 'user' is unknown; "
            "known are protocol, cert, key, cacert"
        ),
    ),
    (
        "etcd://h:1?protocol=ftp",
        "endpoint 'etcd://h:1?protocol=ftp': option 'protocol' must be http or https",
    ),
    (
        "etcd-v2://h:1?protocol=https&cacert=",
        "endpoint 'etcd-v2://h:1?protocol=https&cacert=': option 'cacert' must not be empty",
    ),
    (
        "etcd://h:1?key=k&cert=c",
        "endpoint 'etcd://h:1?key=k&cert=c': option 'cert' is for TLS: give protocol=https, too",
    ),
    (
        "etcd://h:1?protocol=https&cacert=/missing/ca.pem",
        "cacert '/missing/ca.pem': No such file or directory",
    ),
    (
        "etcd-v2://h:1?protocol=https&key=k",
        "key 'k': needs cert, the certificate that it belongs to",
    ),
    ("etcd://h:1,", "address '': a port is missing; write host:port"),
    ("etcd://h:1,h:0", "endpoint 'etcd://h:1,h:0': port 0 is for serving, not for opening"),
    ("etcd-v2:///x", "endpoint 'etcd-v2:///x': write etcd-v2://host:port,…[/prefix][?options]"),
    ("c10d://h:1?a=b", "endpoint 'c10d://h:1?a=b': write c10d://host:port"),
    ("c10d://a:1,b:2", "endpoint 'c10d://a:1,b:2': write c10d://host:port"),
    ("c10d://h:1/x", "endpoint 'c10d://h:1/x': write c10d://host:port"),
]


@pytest.mark.parametrize(("endpoint", "why"), BAD_TO_OPEN)
def test_a_wrong_endpoint_is_refused_before_anything_is_done(
    endpoint: str, why: str, user: Environment
) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(endpoint, environment=user)
    assert str(caught.value) == why
    assert untouched(user)


@pytest.mark.parametrize("given", [7, b"tcp://127.0.0.1:1", ["memory://"]])
def test_an_endpoint_is_text(given: object, user: Environment) -> None:
    with pytest.raises(UsageError, match=r"^endpoint .*: must be a str, not (int|bytes|list)$"):
        open_store(given, environment=user)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1, math.nan, "1", True])
def test_a_wrong_timeout_is_refused_before_anything_is_done(
    timeout: float, user: Environment
) -> None:
    with pytest.raises(UsageError, match="^timeout "):
        open_store("tcp://127.0.0.1:1", timeout=timeout, environment=user)
    assert untouched(user)


@pytest.mark.parametrize(
    "endpoint",
    ["memory://", "tcp://127.0.0.1:0/x", "tcp://", "tcp://127.0.0.1:0?a=b", "tcp://a:0,b:0"],
)
def test_what_cannot_be_served(endpoint: str, user: Environment) -> None:
    with pytest.raises(UsageError) as caught:
        serve_store(endpoint, environment=user)
    assert str(caught.value) == f"endpoint {endpoint!r}: to serve, write tcp://host:port"
    assert untouched(user)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "node-1", "192.0.2.1"])
def test_other_hosts_are_served_with_a_given_secret_only(host: str, user: Environment) -> None:
    for use in (serve_store, open_store):
        with pytest.raises(UsageError) as caught:
            use(f"tcp://{host}:7", environment=user)
        assert str(caught.value) == (
            f"tcp://{host}:7 can be reached from other hosts, so the job's secret is needed: "
            "set HOLDFAST_SECRET_FILE or HOLDFAST_SECRET on every host"
        )
    assert untouched(user)


def test_values_that_a_store_has_before_its_first_client(user: Environment) -> None:
    with (
        serve_store(environment=user, values={"a": b"1", "b": b""}) as server,
        open_store(server.endpoint, environment=user) as store,
        store.watch("", prefix=True) as watch,
    ):
        assert store.multi_get(["a", "b", "c"]) == [b"1", b"", None]
        assert {watch.next(30.0).key for _ in range(2)} == {"a", "b"}
    with pytest.raises(UsageError, match=r"^value 'text': must be bytes, not str"):
        serve_store(environment=user, values={"a": "text"})  # type: ignore[dict-item]


def test_a_busy_port(user: Environment) -> None:
    with serve_store(environment=user) as server:
        with pytest.raises(UsageError) as caught:
            serve_store(server.endpoint, environment=user)
        assert str(caught.value) == f"cannot listen on {server.address}: Address already in use"


def test_an_address_of_another_machine() -> None:
    with pytest.raises(UsageError, match=r"^cannot listen on 192\.0\.2\.1:0: Cannot assign"):
        serve_store("tcp://192.0.2.1:0", secret=new_secret(), environment=Environment())


# Which store it becomes.


@pytest.mark.parametrize(
    ("endpoint", "kind", "shown"),
    [
        ("memory://", "MemoryStore", "memory://"),
        ("file:///tmp/x", "FileStore", "file:///tmp/x"),
        ("etcd://h:1,[::1]:2", "EtcdStore", "etcd://h:1,[::1]:2/holdfast"),
        ("etcd://h:1/job/a/", "EtcdStore", "etcd://h:1/job/a"),
        ("etcd-v2://h:1", "EtcdV2Store", "etcd-v2://h:1/holdfast"),
        ("c10d://h:1", "C10dStore", "c10d://h:1"),
        ("c10d://h:1/", "C10dStore", "c10d://h:1"),
    ],
)
def test_each_scheme_has_its_store(endpoint: str, kind: str, shown: str) -> None:
    with open_store(endpoint, environment=Environment()) as store:
        assert repr(store) == f"<{kind} {shown}>"


def test_a_prefix_is_a_view_of_the_server_s_keys(user: Environment) -> None:
    with (
        serve_store(environment=user) as server,
        open_store(server.endpoint, environment=user) as whole,
        open_store(f"{server.endpoint}/job/a/", environment=user) as view,
    ):
        view.set("k", b"v")
        assert [entry.key for entry in whole.list_prefix()] == ["job/a/k"]


def test_without_an_endpoint_the_environment_s_store_is_opened() -> None:
    with open_store(environment=Environment(store="memory://")) as store:
        assert store.endpoint == "memory://"


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        (Environment(), "no store: give an endpoint, or set HOLDFAST_STORE"),
        (
            Environment(store="mem"),
            "HOLDFAST_STORE: endpoint 'mem': must be scheme://…, such as tcp://127.0.0.1:29400",
        ),
    ],
)
def test_no_store_or_a_wrong_one_in_the_environment(environment: Environment, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(environment=environment)
    assert str(caught.value) == why


def test_the_process_s_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "memory://")
    with open_store() as store:
        assert store.endpoint == "memory://"
    monkeypatch.setenv("HOLDFAST_STROE", "memory://")
    with pytest.raises(UsageError, match="did you mean HOLDFAST_STORE"):
        open_store()
    with pytest.raises(UsageError, match="did you mean HOLDFAST_STORE"):
        serve_store()


def test_a_server_that_is_not_there(user: Environment) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StoreUnavailable) as caught:
            open_store(endpoint, timeout=0.1, environment=user)
    assert caught.value.step == Step.TCP
    assert str(caught.value).startswith(f"no store at {endpoint} in time: cannot connect to ")


def test_one_that_fails_on_its_way_is_closed(
    user: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RemoteStore] = []
    real = RemoteStore.connect

    def interrupted(store: RemoteStore, timeout: float | None) -> None:
        made.append(store)
        real(store, timeout)
        raise KeyboardInterrupt

    monkeypatch.setattr(RemoteStore, "connect", interrupted)
    with serve_store(environment=user) as server:
        with pytest.raises(KeyboardInterrupt):
            open_store(server.endpoint, environment=user)
        with pytest.raises(UsageError, match="closed"):
            made[0].get("k")


def test_only_the_backend_that_is_used_gets_imported() -> None:
    code = (
        "import sys, holdfast.store.open as o; o.open_store('memory://').close();"
        "print([m for m in sys.modules if m.startswith('holdfast.store.')"
        " and m.split('.')[2] in ('file', 'client', 'server', 'etcd', 'c10d')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60) == "[]\n"


@pytest.mark.parametrize("scheme", ["etcd", "etcd-v2"])
def test_etcd_is_opened_by_tls_if_that_is_asked_for(
    scheme: str, certificates: Certificates, user: Environment
) -> None:
    cert, key = certificates.client
    tls = f"protocol=https&cert={cert}&key={key}&cacert={certificates.ca}"
    with open_store(f"{scheme}://h:1/p?{tls}", environment=user) as store:
        assert store.endpoint == f"{scheme}://h:1/p?{tls}"
    with open_store(f"{scheme}://h:1/p?protocol=http", environment=user) as store:
        assert store.endpoint == f"{scheme}://h:1/p"


def test_parsing_gives_the_parts() -> None:
    where = parse_store_endpoint("etcd://a:1,b:2//x/y/")
    assert (where.addresses, where.path) == ((Address("a", 1), Address("b", 2)), "x/y")
    assert parse_store_endpoint("file:///x/").path == "/x/"


# Whose secret it is.


def test_on_loopback_the_user_s_own_secret_is_made_once(user: Environment) -> None:
    assert untouched(user)
    assert choose_secret(LOOPBACK, None, user) == choose_secret(LOOPBACK, None, user)
    assert not untouched(user)


def test_a_given_secret_goes_before_all_others(tmp_path: Path) -> None:
    given, job = new_secret(), new_secret()
    environment = Environment(secret=SecretText(job.reveal()), state_dir=tmp_path / "state")
    assert choose_secret(LOOPBACK, given, environment) == given
    assert choose_secret(LOOPBACK, None, environment) == job
    assert choose_secret(Address("node-1", 1), None, environment) == job
    assert untouched(environment)


def test_a_secret_file_is_read(tmp_path: Path) -> None:
    secret = new_secret()
    path = tmp_path / "secret"
    path.write_text(secret.reveal() + "\n")
    path.chmod(0o600)
    assert choose_secret(Address("node-1", 1), None, Environment(secret_file=path)) == secret


@pytest.mark.parametrize("around", ["{}\n", " {}", "\t{} \r\n"])
def test_a_variable_and_a_file_with_the_same_text_are_the_same_secret(
    tmp_path: Path, around: str
) -> None:
    text = around.format("a secret of größere Länge")
    path = tmp_path / "secret"
    path.write_text(text, encoding="utf-8", newline="")
    path.chmod(0o600)
    by_file = choose_secret(LOOPBACK, None, Environment(secret_file=path))
    assert choose_secret(LOOPBACK, None, env.read({"HOLDFAST_SECRET": text})) == by_file


def test_a_short_secret_is_refused_and_not_shown(user: Environment) -> None:
    with pytest.raises(UsageError) as caught:
        choose_secret(LOOPBACK, None, replace(user, secret=SecretText("hunter2")))
    assert str(caught.value) == "HOLDFAST_SECRET: secret of 7 bytes: at least 16 are needed"
    error: BaseException | None = caught.value
    while error is not None:  # those that it came of, too
        frames = [*traceback.walk_tb(error.__traceback__)][1:]
        assert frames
        assert not any("hunter2" in repr(frame.f_locals) for frame, _ in frames)
        error = error.__context__
    assert untouched(user)


def test_a_secret_file_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(new_secret().reveal())
    path.chmod(0o644)
    with pytest.raises(UsageError) as caught:
        choose_secret(LOOPBACK, None, Environment(secret_file=path))
    assert str(caught.value) == (
        f"HOLDFAST_SECRET_FILE: secret file {path}: mode 0644 lets others at it; "
        "run chmod 600 on it"
    )


def test_a_secret_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    with pytest.raises(UsageError) as caught:
        choose_secret(LOOPBACK, None, Environment(secret_file=path))
    assert str(caught.value) == (
        f"HOLDFAST_SECRET_FILE: secret file {path}: No such file or directory"
    )


def test_no_home_for_a_secret() -> None:
    with pytest.raises(UsageError, match="^no HOME to keep this user's secret in"):
        choose_secret(LOOPBACK, None, Environment())


def test_a_secret_is_a_secret_and_never_shown(user: Environment) -> None:
    with pytest.raises(UsageError) as caught:
        open_store("tcp://[::1]:1", secret="hunter2", environment=user)  # type: ignore[arg-type]
    assert str(caught.value) == "secret: must be a Secret, not str"


def test_a_secret_is_for_tcp_alone(user: Environment) -> None:
    with pytest.raises(UsageError) as caught:
        open_store("memory://", secret=new_secret(), environment=user)
    assert str(caught.value) == "secret: memory:// takes none; only tcp:// does"


def test_both_sides_need_the_same_secret(user: Environment) -> None:
    with serve_store(secret=new_secret()) as server:
        with pytest.raises(Refused) as caught:
            open_store(server.endpoint, environment=user)
        assert caught.value.step == Step.SECRET
