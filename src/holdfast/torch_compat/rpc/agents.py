"""Agents by torch's names, around ours, and the current one of this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from holdfast import env
from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import UsageError
from holdfast.faults.backends import make_faulty
from holdfast.net.address import Address, is_loopback
from holdfast.net.auth import Key
from holdfast.net.secret import Secret, new_secret
from holdfast.net.towards import address_towards
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.transport import MessageTransport
from holdfast.rpc.wire.messages import Kind
from holdfast.rpc.wire.tickets import Number
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.store.open import choose_secret
from holdfast.torch_compat.autograd.contexts import CONTEXTS, Releases, left, release
from holdfast.torch_compat.autograd.stamps import Arriving, ContextAnswer
from holdfast.torch_compat.rpc.places import Places
from holdfast.torch_compat.tensors.devices import Devices, visible
from holdfast.torch_compat.theirs import TheirWorkerInfo

__all__ = [
    "FaultyTensorPipeAgent",
    "RpcAgent",
    "TensorPipeAgent",
    "current",
    "delete_references",
    "destroy_references",
    "enable_gil_profiling",
    "get_rpc_timeout",
    "is_set",
    "reference_counts",
    "reset",
    "set_and_start",
    "set_rpc_timeout",
]

CONTEXT = "torch rpc"
LOOK_EVERY_S = 0.005
LEAVE_WITHIN_S = 60.0
DELETE_WITHIN = timedelta(seconds=100)

_current: Any = None


class RpcAgent:
    """What every agent of torch is."""


class TensorPipeAgent(RpcAgent):
    """The agent of a worker; called by torch's own name, for programs that ask for it."""

    def __init__(
        self,
        store: Any,
        name: str,
        worker_id: int,
        world_size: int | None,
        opts: Any,
        reverse_device_maps: dict[str, dict[Any, Any]],
        devices: list[Any],
    ) -> None:
        self._info = TheirWorkerInfo(name, worker_id)  # checks the name
        self._store = store
        self._opts = opts
        self._is_static = bool(world_size)
        self._devices: list[Any] = []
        self._gone: dict[str, Contact] = {}
        self._followers = ThreadPoolExecutor(
            max(1, opts.num_worker_threads), f"holdfast-torch-{name}"
        )
        far = _far_host(store)
        self.places = Places(store, world_size or None)
        self.core = Agent(
            WorkerInfo(name, worker_id),
            self.places,
            _key(store, far),
            timeout_s=opts.rpc_timeout,
            transport=self._transport(),
            inherits=False,  # as torch has it: a call has its own limit, wherever it is made
        )
        self.releases = Releases(self)
        self._maps = Devices(self.core, self.places, opts.device_maps, reverse_device_maps)
        for kind in (Kind.PYTHON_RREF_FETCH_CALL, Kind.SCRIPT_RREF_FETCH_CALL):
            self.core.add_handler(kind, self._fetched)
        self.core.add_handler(Kind.CLEANUP_AUTOGRAD_CONTEXT_REQ, self._released)
        self.core.server.left = partial(left, self)
        host = "" if far is None else address_towards(far, Deadline.after(LEAVE_WITHIN_S))
        try:
            self.core.start("" if is_loopback(host) else host)
            self._use(devices)
            self.places.enter(self._contact)
        except BaseException:
            self.core.close()
            raise

    @property
    def _contact(self) -> Contact:
        contact = self.core.contact
        if contact is None:
            raise RuntimeError("this agent has not been started")
        return contact

    def _use(self, devices: list[Any]) -> None:
        if devices and not self._devices:
            self.places.show_devices(self._contact.incarnation, visible())
        self._devices = devices

    def _transport(self) -> MessageTransport | None:
        return None

    def later(self, act: Callable[[], object]) -> None:
        """Do something that may block, on a thread that is there for it."""
        try:
            self._followers.submit(act)
        except RuntimeError:  # it has been shut down
            act()

    def _fetched(self, caller: Any, request: Any) -> Any:
        maker, serial, *context = request  # within a context its number comes, and the worker's
        room = self.core.rrefs.value(Number(maker, serial))
        if context:
            CONTEXTS.join(*context)
            head = Arriving(*context)
            return room.then(lambda done: ContextAnswer(done.value(), head))
        if room.done() and room.exception() is None:
            return room.value()
        return room

    def _released(self, caller: Any, numbers: list[int]) -> None:
        for number in numbers:
            release(self, number, told_by=caller.id)

    # The workers that are there.

    def get_worker_info(self, worker: Any = None) -> Any:
        """Return this worker's info, or that of the worker with that name or number."""
        if worker is None:
            return self._info
        info = self.places.find(worker).info
        return TheirWorkerInfo(info.name, info.id)

    def get_worker_infos(self) -> list[Any]:
        """Return all workers that are known."""
        return [TheirWorkerInfo(one.info.name, one.info.id) for one in self.places.everybody()]

    @property
    def is_static_group(self) -> bool:
        """Whether the group is of a fixed size."""
        return self._is_static

    @property
    def store(self) -> Any:
        """The store by which the workers meet."""
        return self._store

    def _get_device_map(self, dst: Any) -> dict[Any, Any]:
        found = self._opts.device_maps.get(dst.name)
        return {} if found is None else dict(found)

    def _get_backend_options(self) -> Any:
        return self._opts

    def _update_group_membership(
        self,
        worker_info: Any,
        my_devices: list[Any],
        reverse_device_map: dict[str, dict[Any, Any]],
        is_join: bool,
    ) -> None:
        name = worker_info.name
        if is_join:
            # An earlier one of that name is given up only now: it still calls while it leaves.
            gone = self._gone.pop(name, None)
            if gone is not None:
                self.core.lost(gone)
            self.places.came(name, worker_info.id)
            self._maps.back = {**self._maps.back, **reverse_device_map}
            self._use(my_devices)
            return
        gone = self.places.went(name)
        if gone is not None:
            self._gone[name] = gone
        self._maps.back = {k: v for k, v in self._maps.back.items() if k != name}

    # For people.

    def get_metrics(self) -> dict[str, str]:
        """Return what can be counted, by name."""
        shown = {name: value for name, value in self.core.metrics().items() if "agent." in name}
        size = self._opts.num_worker_threads
        running = int(shown["agent.server_active_calls"])
        shown["agent.thread_pool_size"] = str(size)
        shown["agent.num_idle_threads"] = str(max(0, size - running))
        return shown

    def get_debug_info(self) -> dict[str, str]:
        """Return the same; torch has no more to say either."""
        return self.get_metrics()

    # The end.

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Wait until no worker of the group has anything under way.

        For its own calls as long as they take, as torch does; then for the others a while.
        """
        if not self._is_static:
            self.core.rrefs.release_all()
        calls = -1
        self.releases.tell()
        while True:
            self._wait_idle(Deadline.after(timeout or None))
            before, calls = calls, int(self.core.metrics()["agent.client_calls"])
            deadline = Deadline.after(timeout or LEAVE_WITHIN_S)
            if not self.places.meet(calls != before, deadline):
                break
        if not self._is_static:
            self.places.leave(self._contact)
        self.places.part(self._info.id, deadline)

    def _wait_idle(self, deadline: Deadline) -> None:
        self.core.rrefs.wait_answered(deadline.sooner(LEAVE_WITHIN_S).remaining)
        while not deadline.passed():
            now = self.core.metrics()
            if (
                all(now[f"agent.{kind}_active_calls"] == "0" for kind in ("client", "server"))
                and now["agent.server_active_async_calls"] == "0"
            ):
                return
            SYSTEM_CLOCK.sleep(LOOK_EVERY_S)

    def sync(self) -> None:
        """Do nothing: torch's does nothing either."""

    def shutdown(self) -> None:
        """End it: what is under way fails. Idempotent."""
        CONTEXTS.end_passes(RuntimeError("this agent has been shut down"))
        self.core.close()
        self._followers.shutdown(wait=False)


class FaultyTensorPipeAgent(TensorPipeAgent):
    """An agent whose messages go wrong as its options say."""

    def _transport(self) -> MessageTransport | None:
        opts = self._opts
        return make_faulty(
            {
                "messages_to_fail": list(opts.messages_to_fail),
                "messages_to_delay": dict(opts.messages_to_delay),
                "num_fail_sends": opts.num_fail_sends,
            }
        )


# The current one.


def is_set() -> bool:
    """Say whether there is a current agent."""
    return _current is not None


def current() -> Any:
    """Return the current agent."""
    if _current is None:
        raise RuntimeError(
            "Current RPC agent is not set! Did you initialize the RPC framework "
            "(e.g. by calling `rpc.init_rpc`)?"
        )
    return _current


def set_and_start(agent: Any) -> None:
    """Make an agent the current one; it runs already."""
    global _current  # noqa: PLW0603  # one for a process, as torch has it
    if _current is not None:
        raise RuntimeError("Current RPC agent is set!")
    _current = agent


def reset() -> None:
    """Have no current agent any more."""
    global _current  # noqa: PLW0603
    _current = None


def get_rpc_timeout() -> float:
    """Return how long calls may take that do not say it themselves; 0 for as long as it takes."""
    return float(current().core.timeout_s)


def set_rpc_timeout(seconds: float) -> None:
    """Set that."""
    current().core.timeout_s = seconds


def enable_gil_profiling(flag: bool) -> None:
    """Measure how long threads wait for the interpreter, or stop it."""
    current().core.enable_gil_profiling(flag)


# Its references.


def reference_counts() -> dict[str, str]:
    """Return how many references there are of what, by torch's names.

    A value that no other worker has ever held is not counted among those that this worker owns.
    """
    rrefs = current().core.rrefs
    found = rrefs.counts()
    return {
        "num_owner_rrefs": str(rrefs.shared_values),
        "num_pending_futures": str(found["pending_futures"]),
        "num_pending_users": str(found["pending_users"]),
        "num_forks": str(found["forks"]),
    }


def delete_references(timeout: timedelta = DELETE_WITHIN) -> None:
    """Give up all references of this worker, and wait until their owners know."""
    rrefs = current().core.rrefs
    rrefs.release_all()
    rrefs.wait_answered(Deadline.after(timeout.total_seconds()).remaining)


def destroy_references(ignore_leak: bool) -> None:
    """Raise if others still hold values of this worker, unless that is to be ignored."""
    agent = current()
    core = getattr(agent, "core", None)
    leaks = [] if core is None else core.rrefs.leaks()
    if leaks and not ignore_leak:
        raise RuntimeError("\n".join(f"Leaking RRef {leak}" for leak in leaks))


def _far_host(store: Any) -> Address | None:
    """Return the address of a store that workers of other hosts may use; None if there is none."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore) or is_loopback(store.host):
        return None
    return Address(store.host, store.port)


def _key(store: Any, far: Address | None) -> Key:
    """Return the key by which the workers of this group know each other.

    It is the job's secret's, if there is one, or on one host the user's. Between hosts torch's
    programs have none: then one is made, and every reader of the group's store knows it.
    """
    environment = env.read(env.variables())
    try:
        return choose_secret(far or Address("127.0.0.1", 0), None, environment).key(CONTEXT)
    except UsageError:
        if far is None:
            raise
    agreed = store.compare_set("holdfast/secret", "", new_secret().reveal())
    return Secret(agreed).key(CONTEXT)
