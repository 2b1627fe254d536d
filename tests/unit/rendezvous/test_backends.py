"""The backends: which node hosts, which may join, and one line for each mistake.

Every test is checked for threads, sockets and files that it leaves: a mistake leaves none.
"""

from __future__ import annotations

import logging
import queue
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import (
    HoldfastError,
    Refused,
    RendezvousClosed,
    StoreUnavailable,
    UsageError,
)
from holdfast.ids import UNNAMED_RUN
from holdfast.net.address import Address
from holdfast.rendezvous import backends
from holdfast.rendezvous import release as release_module
from holdfast.rendezvous.handler import Round, StoreRendezvous
from holdfast.rendezvous.parameters import RendezvousParameters
from holdfast.rendezvous.registry import create_rendezvous
from holdfast.store import open as store_open
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.open import open_store, serve_store
from holdfast.testing.clock import ManualClock
from tests.waiting import until

SOON = 30.0
Make = Callable[..., StoreRendezvous]


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET", "a secret of sixteen bytes or more")


@pytest.fixture
def port() -> Iterator[int]:
    """A port that no other process is given, and a server can bind."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def params(
    backend: str, endpoint: str, nodes: int = 2, run: str = "job", **config: Any
) -> RendezvousParameters:
    quick = {"last_call_timeout": 0, "close_timeout": 10, "join_timeout": 30}
    return RendezvousParameters(backend, endpoint, run, nodes, nodes, config=quick | config)


@pytest.fixture
def make() -> Iterator[Make]:
    """Make nodes; they leave together when the test ends."""
    nodes: list[StoreRendezvous] = []

    def make(*args: Any, **config: Any) -> StoreRendezvous:
        node = create_rendezvous(params(*args, **config))
        assert isinstance(node, StoreRendezvous)
        nodes.append(node)
        return node

    yield make
    with ThreadPoolExecutor(max(1, len(nodes))) as pool:
        list(pool.map(lambda node: node.shutdown(), nodes))


def together(*nodes: StoreRendezvous) -> list[Round]:
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(lambda node: node.next_round(timeout=SOON), nodes))


def hosts(node: StoreRendezvous) -> bool:
    release: Any = node._release
    return release.place.server is not None


def twin_named(node: StoreRendezvous) -> bool:
    progress = node.progress()
    return progress is not None and "cannot have rank 1: " in progress.reason


def refused(parameters: RendezvousParameters, kind: type[HoldfastError] = UsageError) -> str:
    """Return the one line that a mistake costs."""
    with pytest.raises(kind) as caught:
        create_rendezvous(parameters)
    text = str(caught.value)
    assert "\n" not in text
    return text


class TestPatience:
    def test_a_store_is_waited_for_to_the_end_and_told_of_ever_less_often(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = ManualClock()
        given: list[float | None] = []

        def attempt(limit: Deadline) -> None:
            given.append(limit.remaining())
            clock.advance(limit.remaining() or 0.0)
            raise StoreUnavailable("nobody is there")

        with pytest.raises(StoreUnavailable, match="^nobody is there$"):
            backends._retry(attempt, params("etcd", "h", join_timeout=100), clock)
        assert given == [5.0, 10.0, 20.0, 65.0]
        assert caplog.messages == [
            f"run job: nobody is there; waiting up to {left} s more" for left in (95, 85, 65)
        ]

    def test_what_no_time_mends_is_raised_at_once(self, caplog: pytest.LogCaptureFixture) -> None:
        def attempt(limit: Deadline) -> None:
            raise StoreUnavailable("no such folder")

        with pytest.raises(StoreUnavailable, match="^no such folder$"):
            backends._retry(attempt, params("file", "/x"), ManualClock())
        assert caplog.messages == []


class TestC10d:
    def test_of_nodes_that_start_at_once_exactly_one_hosts(self, make: Make, port: int) -> None:
        with ThreadPoolExecutor(6) as pool:
            nodes = list(pool.map(lambda _: make("c10d", f"127.0.0.1:{port}", 6), range(6)))
        assert [hosts(node) for node in nodes].count(True) == 1
        rounds = together(*nodes)
        assert sorted(here.rank for here in rounds) == list(range(6))
        assert {here.master_address for here in rounds} == {"127.0.0.1"}
        assert len({here.master_port for here in rounds}) == 1

    def test_the_host_can_be_chosen(self, make: Make, port: int) -> None:
        endpoint = f"127.0.0.1:{port}"
        with ThreadPoolExecutor(1) as pool:  # it waits for the host
            later = pool.submit(make, "c10d", endpoint, is_host="false")
            host = make("c10d", endpoint, is_host=True)
            other = later.result(SOON)
        assert (hosts(host), hosts(other)) == (True, False)
        together(host, other)

    def test_a_node_that_waits_long_for_the_host_logs_it_and_joins(
        self, make: Make, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backends, "TELL_AFTER_S", 0.05)
        told: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        handler, log = QueueHandler(told), logging.getLogger("holdfast.rendezvous")
        log.addHandler(handler)
        endpoint = f"127.0.0.1:{port}"
        try:
            with ThreadPoolExecutor(1) as pool:
                later = pool.submit(make, "c10d", endpoint, is_host="false")
                text = told.get(timeout=SOON).getMessage()
                host = make("c10d", endpoint, is_host=True)
                other = later.result(SOON)
        finally:
            log.removeHandler(handler)
        assert text.startswith(f"run job: no store at tcp://{endpoint} in time: ")
        together(host, other)

    def test_a_node_that_is_not_the_host_never_binds(self, port: int) -> None:
        text = refused(
            params("c10d", f"127.0.0.1:{port}", is_host="0", join_timeout=0.2), StoreUnavailable
        )
        assert text.startswith(f"no store at tcp://127.0.0.1:{port} in time: cannot connect to ")

    def test_the_host_may_pick_a_port(self, make: Make) -> None:
        host = make("c10d", "127.0.0.1:0", is_host="true")
        assert not host.endpoint.endswith(":0")
        other = make("c10d", host.endpoint.removeprefix("tcp://"), is_host="false")
        together(host, other)

    @pytest.mark.parametrize("endpoint", ["localhost:0", ""])
    def test_a_single_node_that_no_other_could_find_serves_nothing(
        self, make: Make, endpoint: str
    ) -> None:
        node = make("c10d", endpoint, 1)
        assert node.endpoint == "memory://"
        assert together(node)[0].world_size == 1

    def test_a_single_node_hosts_if_it_is_told_to(self, make: Make) -> None:
        node = make("c10d", "localhost:0", 1, is_host="true")
        assert node.endpoint.startswith("tcp://")
        assert together(node)[0].world_size == 1

    @pytest.mark.parametrize("config", [{}, {"is_host": "false"}])
    def test_several_nodes_would_not_find_each_other(self, config: dict[str, str]) -> None:
        assert refused(params("c10d", "localhost:0", 2, "job", **config)) == (
            "rendezvous endpoint localhost:0: port 0 is for a node that hosts (is_host=true), or "
            "for a single one"
        )

    def test_a_host_that_cannot_bind(self, make: Make, port: int) -> None:
        make("c10d", f"127.0.0.1:{port}", is_host="true")
        for address, why in (
            (f"127.0.0.1:{port}", "Address already in use"),
            ("203.0.113.7:29400", "Cannot assign requested address"),
        ):
            assert refused(params("c10d", address, is_host="true")) == (
                f"rendezvous endpoint {address}: cannot be hosted here: "
                f"cannot listen on {address}: {why}"
            )

    def test_two_jobs_at_one_endpoint(self, make: Make, port: int) -> None:
        endpoint = f"127.0.0.1:{port}"
        make("c10d", endpoint, run="one")
        assert refused(params("c10d", endpoint, run="two")) == (
            f"rendezvous endpoint {endpoint}: serves run 'one', not 'two'; "
            "give each job a port of its own"
        )

    def test_a_store_without_a_run_serves_any_run(self, make: Make) -> None:
        with serve_store("tcp://127.0.0.1:0") as server:
            endpoint = server.endpoint.removeprefix("tcp://")
            for run in ("one", "two"):
                node = make("c10d", endpoint, 1, run=run, is_host="false")
                assert node.next_round(timeout=SOON).world_size == 1
                assert node.shutdown()

    def test_a_store_that_outlives_the_job_needs_an_id_for_each_job(self, make: Make) -> None:
        with serve_store("tcp://127.0.0.1:0") as server:
            endpoint = server.endpoint.removeprefix("tcp://")
            for config in ({}, {"is_host": "false"}):
                assert refused(params("c10d", endpoint, 2, UNNAMED_RUN, **config)) == (
                    f"run id 'none': the store at {endpoint} outlives the job, so another is "
                    "needed (--rdzv-id): give an id of its own to each job, the same on all its "
                    "nodes"
                )
            make("c10d", endpoint, 1, run=UNNAMED_RUN)  # one node is not asked

    def test_a_store_that_a_node_hosts_needs_no_id(self, make: Make, port: int) -> None:
        nodes = [make("c10d", f"127.0.0.1:{port}", run=UNNAMED_RUN) for _ in range(2)]
        assert {here.world_size for here in together(*nodes)} == {2}

    def test_a_hosted_store_says_its_run_before_other_nodes_can_connect(
        self, make: Make, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a node that is quicker than the host would take the store for a standalone one."""
        real = store_open.open_store
        found = []

        def open_store(endpoint: str, **rest: Any) -> Any:
            store = real(endpoint, **rest)
            found.append(store.get(backends.RUN_KEY))
            return store

        monkeypatch.setattr(store_open, "open_store", open_store)
        make("c10d", f"127.0.0.1:{port}", run=UNNAMED_RUN)
        assert found == [UNNAMED_RUN.encode()]

    def test_why_it_is_not_hosted_here_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "holdfast.rendezvous")
        with socket.socket() as taken:  # it listens, and nothing answers
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
            text = refused(params("c10d", endpoint, join_timeout=0.3), StoreUnavailable)
        why = f"not hosted here: cannot listen on {endpoint}: Address already in use"
        assert text.endswith(f" ({why})")
        assert caplog.messages == [
            f"run job: the store is {why}",
            f"run job: waiting up to 0.3 s for the store at {endpoint}",
        ]

    def test_another_secret(self, make: Make, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        make("c10d", f"127.0.0.1:{port}")
        monkeypatch.setenv("HOLDFAST_SECRET", "a secret of somebody else's job")
        text = refused(params("c10d", f"127.0.0.1:{port}"), Refused)
        assert text.startswith(f"handshake with 127.0.0.1:{port}: ")
        assert "else's job" not in text

    def test_other_hosts_need_a_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HOLDFAST_SECRET")
        monkeypatch.delenv("HOLDFAST_SECRET_FILE", raising=False)
        text = refused(params("c10d", "203.0.113.7:29400"))
        assert "so the job's secret is needed" in text

    @pytest.mark.parametrize(
        ("endpoint", "message"),
        [
            ("localhost:99999", "address 'localhost:99999': port '99999' must be a number from 0"),
            ("localhost:http", "address 'localhost:http': port 'http' must be a number from 0"),
            ("localhost:", "address 'localhost:': port '' must be a number"),
            ("::1:29400", "address '::1:29400': put an IPv6 address in brackets"),
            ("http://a:1", "address 'http://a:1': "),
            (":29400", "address ':29400': host '' must be a host name"),
        ],
    )
    @pytest.mark.parametrize("backend", ["c10d", "static", "etcd"])
    def test_odd_endpoints(self, backend: str, endpoint: str, message: str) -> None:
        config = {"rank": 0} if backend == "static" else {}
        assert refused(params(backend, endpoint, 2, "job", **config)).startswith(message)

    def test_several_endpoints_are_those_of_a_store_with_several_members(self, make: Make) -> None:
        with serve_store() as first, serve_store(join=first.endpoint):
            where = ", ".join(first.members)
            one = make("c10d", where, 1, "job-1")
            assert isinstance(one.next_round(timeout=SOON), Round)

    @pytest.mark.parametrize(
        ("endpoint", "config", "message"),
        [
            (
                "a:1,b:2",
                {"is_host": "true"},
                "rendezvous endpoint 'a:1,b:2': no node hosts",
            ),
            ("a:1,b:0", {}, "endpoint 'tcp://a:1,b:0': port 0 is for serving, not for opening"),
            ("a:1,", {}, "address '': host '' must be a host name"),
        ],
    )
    def test_odd_lists_of_endpoints(
        self, endpoint: str, config: dict[str, str], message: str
    ) -> None:
        assert refused(params("c10d", endpoint, 2, "job", **config)).startswith(message)

    def test_the_port_can_be_left_out(self) -> None:
        text = refused(
            params("c10d", "203.0.113.7", is_host="true", join_timeout=0.1),
        )
        assert "cannot listen on 203.0.113.7:29400" in text

    def test_a_store_type_that_is_none(self) -> None:
        text = refused(params("c10d", "localhost:1", store_type="redis"))
        assert text == "rendezvous store_type 'redis': must be tcp or file"

    def test_a_flag_that_is_none(self) -> None:
        text = refused(params("c10d", "localhost:1", is_host="perhaps"))
        assert text == "rendezvous is_host 'perhaps': must be true or false"

    def test_a_local_address_that_is_not_ours_is_said_before_anything_waits(self) -> None:
        said = RendezvousParameters("c10d", "127.0.0.1:1", "job", 1, 1, local_addr="203.0.113.7")
        text = refused(said)
        assert text.startswith("local address '203.0.113.7': cannot be bound here: ")

    @pytest.mark.parametrize("address", ["127.0.0.2", "gpu-7.cluster"])
    def test_a_local_address_is_the_masters(self, address: str) -> None:
        config = {"is_host": "true"}
        said = RendezvousParameters("c10d", "127.0.0.1:0", "job", 1, 1, address, config)
        with create_rendezvous(said) as node:
            assert node.next_round(timeout=SOON).master_address == address

    def test_a_name_that_means_loopback_here_is_warned_of(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        real = socket.getaddrinfo

        def getaddrinfo(host: str, *args: Any, **more: Any) -> Any:
            if host == "node1.test" and not more.get("flags", 0) & socket.AI_NUMERICHOST:
                host = "127.0.0.1"
            return real(host, *args, **more)

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        make("c10d", "node1.test:0", 1)
        (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
        assert warning.getMessage() == (
            "the store at node1.test:0 is hosted here, but its name is 127.0.0.1 on this "
            "machine: other hosts cannot reach it"
        )

    def test_plain_loopback_needs_no_warning(
        self, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        make("c10d", "localhost:0", 1)
        assert not [record for record in caplog.records if record.levelname == "WARNING"]


class TestTheHostLeaves:
    def test_the_others_use_the_store_after_it(self, make: Make) -> None:
        host = make("c10d", "127.0.0.1:0", is_host="true")
        other = make("c10d", host.endpoint.removeprefix("tcp://"), is_host="false")
        _, there = together(host, other)
        with ThreadPoolExecutor(1) as pool:
            leaving = pool.submit(host.shutdown)
            assert other._session.wait(lambda: other.over() is not None, Deadline.after(SOON))
            assert there.store.get("k") is None  # the store is still there
            assert leaving.result(SOON)
            assert there.store.get("k") is None
            assert other.shutdown()

    def test_it_does_not_wait_for_those_that_finished_and_left(self, make: Make) -> None:
        host = make("c10d", "127.0.0.1:0", 3, is_host="true")
        endpoint = host.endpoint.removeprefix("tcp://")
        early, late = (make("c10d", endpoint, 3, is_host="false") for _ in range(2))
        together(host, early, late)
        early.finish()
        assert early.shutdown()
        host.finish()
        late.finish()
        with ThreadPoolExecutor(1) as pool:
            leaving = pool.submit(host.shutdown)
            assert late._session.wait(lambda: late._node.leading, Deadline.after(SOON))
            assert not leaving.done()
            assert late.over() is None
            assert late.shutdown()
            assert leaving.result(SOON)

    def test_it_serves_those_that_left_until_they_hang_up(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A node that left may not know it yet, and would look for the store."""
        monkeypatch.setattr(release_module, "HANG_UP_WITHIN_S", SOON)
        host = make("c10d", "127.0.0.1:0", 1, is_host="true")
        together(host)
        release: Any = host._release
        server = release.place.server
        with open_store(host.endpoint) as other, ThreadPoolExecutor(1) as pool:
            assert other.get("a key") is None
            leaving = pool.submit(host.shutdown)
            until(lambda: server.status().connections <= 1)  # the host itself has disconnected
            assert other.get("a key") is None
            other.close()
            assert leaving.result(SOON)

    def test_but_not_for_ever(self, make: Make, port: int) -> None:
        """The only host, that of rank 0, has no node to which it could hand over."""
        config = {"store_port": port, "close_timeout": 0.3}
        host = make("static", f"127.0.0.1:{port - 1}", rank=0, **config)
        together(host, make("static", f"127.0.0.1:{port - 1}", rank=1, **config))
        began = SYSTEM_CLOCK.monotonic()
        assert not host.shutdown()
        assert SYSTEM_CLOCK.monotonic() - began < SOON

    def test_a_host_whose_store_is_gone(self, make: Make) -> None:
        host = make("c10d", "127.0.0.1:0", 1, is_host="true", close_timeout=1)
        release: Any = host._release
        release.place.server.close()
        assert not host.shutdown()


class TestStatic:
    def test_ranks_and_the_master_are_as_given(self, make: Make, port: int) -> None:
        """Rank 0 hosts one port above the master's, which is not bound here."""
        endpoint = f"127.0.0.1:{port - 1}"
        with ThreadPoolExecutor(3) as pool:
            nodes = list(pool.map(lambda rank: make("static", endpoint, 3, rank=rank), [2, 1, 0]))
        assert [hosts(node) for node in nodes] == [False, False, True]
        assert nodes[0].endpoint == f"tcp://127.0.0.1:{port}"
        rounds = together(*nodes)
        assert [here.rank for here in rounds] == [2, 1, 0]
        for here in rounds:
            assert (here.master_address, here.master_port) == ("127.0.0.1", port - 1)

    def test_where_nodes_meet_can_be_said(self, make: Make, port: int) -> None:
        host = make("static", "localhost:29500", 2, rank=0, store_port=port)
        other = make("static", "localhost:29500", 2, rank="1", store_port=str(port))
        assert other.endpoint == f"tcp://localhost:{port}"
        assert together(host, other)[1].master_address == "localhost"

    def test_a_single_node_needs_no_port_and_no_rank(self, make: Make) -> None:
        node = make("static", "gpu-7.cluster:29500", 1)
        (here,) = together(node)
        assert (here.master_address, here.master_port) == ("gpu-7.cluster", 29500)
        assert (here.rank, here.world_size) == (0, 1)
        assert node.endpoint == "memory://"

    def test_the_same_rank_twice_is_explained(self, make: Make, port: int) -> None:
        endpoint = f"127.0.0.1:{port - 1}"
        host = make("static", endpoint, 3, rank=0)
        nodes = [host, *(make("static", endpoint, 3, rank=1) for _ in range(2))]
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(node.next_round) for node in nodes]
            for node in nodes:  # each of them is told
                assert node._session.wait(partial(twin_named, node), Deadline.after(SOON))
            host.close("enough seen")
            for asked in waiting:
                with pytest.raises(RendezvousClosed):
                    asked.result(SOON)

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({}, "rendezvous rank None: must be from 0 to 1"),
            ({"rank": 2}, "rendezvous rank 2: must be from 0 to 1"),
            ({"rank": -1}, "rendezvous rank '-1': must be a whole number"),
            ({"rank": "first"}, "rendezvous rank 'first': must be a whole number"),
            (
                {"rank": 0, "store_port": 0},
                "rendezvous endpoint localhost:29500: nodes would meet ",
            ),
            ({"rank": 0, "store_port": 70000}, "rendezvous endpoint localhost:29500: nodes would"),
        ],
    )
    def test_odd_ranks_and_ports(self, config: dict[str, Any], message: str) -> None:
        assert refused(params("static", "localhost:29500", **config)).startswith(message)

    @pytest.mark.parametrize("endpoint", ["localhost:65535", "localhost:0"])
    def test_no_port_above(self, endpoint: str) -> None:
        text = refused(params("static", endpoint, rank=0))
        assert text.endswith("give store_port, and ports from 1 to 65535")

    def test_a_range_of_nodes(self) -> None:
        said = RendezvousParameters("static", "localhost:1", "job", 1, 2, config={"rank": 0})
        assert refused(said) == "nodes 1:2: a static rendezvous takes a fixed number"


class TestFile:
    @pytest.mark.parametrize(
        ("backend", "config"), [("file", {}), ("c10d", {"store_type": "file"})]
    )
    def test_two_nodes_meet(
        self, make: Make, tmp_path: Path, backend: str, config: dict[str, str]
    ) -> None:
        nodes = [make(backend, str(tmp_path / "store"), **config) for _ in range(2)]
        assert sorted(here.rank for here in together(*nodes)) == [0, 1]
        assert nodes[0].backend == backend

    def test_an_endpoint_with_its_scheme(self, make: Make, tmp_path: Path) -> None:
        together(make("file", f"file://{tmp_path}/store", 1))

    @pytest.mark.parametrize("endpoint", ["", "store", "localhost:29400", "file://store"])
    def test_a_path_is_absolute(self, endpoint: str) -> None:
        path = endpoint.removeprefix("file://")
        text = refused(params("file", endpoint))
        assert text == f"rendezvous endpoint {path!r}: must be an absolute path"

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        said = params("file", str(tmp_path / "no" / "store"), join_timeout=1)
        assert "no/store" in refused(said, HoldfastError)


@pytest.fixture(scope="module")
def etcd() -> Iterator[Address]:
    with LocalEtcdServer() as server:
        host, _, port = server.endpoint.removeprefix("etcd://").partition(":")
        yield Address(host, int(port))


class TestEtcd:
    @pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
    def test_two_nodes_meet(self, make: Make, etcd: Address, backend: str) -> None:
        nodes = [make(backend, str(etcd), run=f"meet-{backend}") for _ in range(2)]
        rounds = together(*nodes)
        assert sorted(here.rank for here in rounds) == [0, 1]
        rounds[0].store.set("k", b"v")
        assert rounds[1].store.get("k") == b"v"
        assert rounds[0].master_address == "127.0.0.1"

    @pytest.mark.parametrize(
        ("given", "prefix"), [("", "torchelastic/p2p"), ("/jobs/mine/", "jobs/mine")]
    )
    def test_where_the_keys_lie(self, make: Make, etcd: Address, given: str, prefix: str) -> None:
        run = f"at-{prefix.replace('/', '-')}"
        node = make("etcd", f"{etcd}, {etcd}", 1, run=run, etcd_prefix=given)
        together(node)
        with open_store(f"etcd://{etcd}/{prefix}") as store:
            assert store.get(f"rdzv/{run}/ctl/round") is not None

    @pytest.mark.parametrize(
        ("backend", "config", "message"),
        [
            ("etcd", {"protocol": "ftp"}, "rendezvous protocol 'ftp': must be http or https"),
            ("etcd", {"protocol": "https", "cacert": "/no/such.pem"}, "cacert '/no/such.pem': No "),
            ("etcd-v2", {"protocol": "https", "ssl_cert": "/no.pem"}, "cert '/no.pem': No such"),
        ],
    )
    def test_odd_options(self, backend: str, config: dict[str, str], message: str) -> None:
        said = params(backend, "127.0.0.1:1", 2, "job", **config)
        assert refused(said, HoldfastError).startswith(message)

    @pytest.mark.parametrize(("backend", "key"), [("etcd", "cacert"), ("etcd-v2", "ca_cert")])
    def test_files_have_no_effect_without_https(
        self, make: Make, etcd: Address, backend: str, key: str
    ) -> None:
        together(make(backend, str(etcd), 1, run=f"plain-{backend}", **{key: "/no/such.pem"}))

    @pytest.mark.parametrize("endpoint", ["", ",", " , "])
    @pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
    def test_no_endpoint(self, backend: str, endpoint: str) -> None:
        text = refused(params(backend, endpoint))
        assert text == f"rendezvous endpoint {endpoint!r}: {backend} needs host:port[,…]"

    @pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
    def test_no_server_there(self, backend: str, port: int) -> None:
        said = params(backend, f"127.0.0.1:{port}", join_timeout=0.3)
        assert f"127.0.0.1:{port}" in refused(said, HoldfastError)
