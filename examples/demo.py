"""The store at work between real processes, one of them killed.

Four workers share a list of tasks through a store. Each claims a task by `compare_set` under a
lease that it keeps alive. One worker is killed with a task in its hands: its lease ends, the claim
vanishes, another worker does the task. Run it with `make demo`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import holdfast
from holdfast.net.secret import new_secret

WORKERS = 4
TASKS = 24
LEASE_S = 0.5
VICTIM = 2
STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - STARTED:6.2f} s  {text}", flush=True)


def sum_of_squares(task: int) -> int:
    return sum(number * number for number in range(task * 20_000))


# A worker.


def work(rank: int) -> None:
    with (
        holdfast.open_store() as store,  # HOLDFAST_STORE says where
        holdfast.LeaseKeeper(store, LEASE_S) as keeper,
        store.watch("claim/", prefix=True) as claims,
    ):
        me = f"worker {rank}".encode()
        store.set(f"member/{rank}", str(os.getpid()).encode(), lease=keeper.lease)
        holdfast.barrier(store, "all-here", rank, WORKERS, timeout=30)
        done = 0
        while store.count("result/") < TASKS:
            task = claim(store, me, keeper)
            if task is None:
                wait_for_a_change(claims)
                continue
            if rank == VICTIM and done == 2:
                store.set("stuck", str(task).encode())
                signal.pause()  # in the middle of a task, until the axe falls
            result = str(sum_of_squares(task)).encode()
            store.compare_set(f"result/{task:02}", None, me + b": " + result)
            store.delete(f"claim/{task:02}")
            done += 1


def claim(store: holdfast.Store, me: bytes, keeper: holdfast.LeaseKeeper) -> int | None:
    """Claim a task that is neither done nor claimed; None if there is none."""
    finished = {entry.key[-2:] for entry in store.list_prefix("result/")}
    for task in range(TASKS):
        if f"{task:02}" in finished:
            continue
        if store.compare_set(f"claim/{task:02}", None, me, lease=keeper.lease).ok:
            if store.get(f"result/{task:02}") is None:
                return task
            store.delete(f"claim/{task:02}")  # done and released since we looked
    return None


def wait_for_a_change(claims: holdfast.Watch) -> None:
    with contextlib.suppress(TimeoutError):
        claims.next(timeout=0.2)


# The one who watches.


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        secret = new_secret()
        secret_file = Path(folder) / "secret"
        secret_file.touch(mode=0o600)
        secret_file.write_text(secret.reveal())
        with holdfast.serve_store(secret=secret) as server:
            say(f"a store is served at {server.endpoint}")
            refuse_strangers(server.endpoint)
            env = os.environ | {
                "HOLDFAST_STORE": server.endpoint,
                "HOLDFAST_SECRET_FILE": str(secret_file),
            }
            workers = [
                subprocess.Popen([sys.executable, __file__, str(rank)], env=env)
                for rank in range(WORKERS)
            ]
            try:
                with holdfast.open_store(server.endpoint, secret=secret) as store:
                    return watch(store, workers)
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()


def refuse_strangers(endpoint: str) -> None:
    try:
        holdfast.open_store(endpoint, secret=new_secret(), timeout=5)
    except holdfast.HoldfastError as error:
        say(f"a stranger with another secret: {type(error).__name__}")
    host, _, port = endpoint.removeprefix("tcp://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        say(f"a browser: hung up on, after {len(browser.recv(100))} bytes of answer")


def watch(store: holdfast.Store, workers: list[subprocess.Popen[bytes]]) -> int:
    pids = store.wait([f"member/{rank}" for rank in range(WORKERS)], timeout=30)
    say(f"{WORKERS} workers are here: processes {', '.join(pid.decode() for pid in pids)}")
    [task] = store.wait(["stuck"], timeout=30)
    say(f"worker {VICTIM} has claimed task {task.decode()}; now it is killed with SIGKILL")
    workers[VICTIM].send_signal(signal.SIGKILL)
    killed_at = time.monotonic()
    with store.watch(f"claim/{int(task):02}") as claims:
        for change in claims:
            if change.value != f"worker {VICTIM}".encode():
                after = time.monotonic() - killed_at
                say(f"its lease of {LEASE_S} s has ended, {after:.2f} s later: the claim is gone")
                break
    [done] = store.wait([f"result/{int(task):02}"], timeout=30)
    say(f"task {task.decode()} was done all the same, by {done.decode().partition(':')[0]}")
    store.wait([f"result/{number:02}" for number in range(TASKS)], timeout=30)
    return report(store)


def report(store: holdfast.Store) -> int:
    results = store.list_prefix("result/")
    by_worker: dict[str, int] = {}
    right = 0
    for entry in results:
        who, _, number = entry.value.decode().partition(": ")
        by_worker[who] = by_worker.get(who, 0) + 1
        right += int(number) == sum_of_squares(int(entry.key[-2:]))
    say(", ".join(f"{who}: {count} tasks" for who, count in sorted(by_worker.items())))
    say(f"{len(results)} of {TASKS} tasks done, {right} right, each once; 1 process killed")
    return 0 if right == TASKS else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(int(sys.argv[1]))
    else:
        sys.exit(main())
