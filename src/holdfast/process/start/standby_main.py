"""What a standby does: import, wait for the order that says which worker it is, be that worker.

Loaded by child.py. Nothing here may import holdfast: see there.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import sys

TYPE_CHECKING = False  # the real one would cost the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Received = tuple[dict[str, str], dict[str, str], list[int]]

__all__ = ["stand_by"]


def stand_by(
    order: Mapping[str, str],
    receive_order: Callable[[socket.socket], Received | None],
    tie_to: Callable[[int], None],
    load: Callable[[str], dict[str, Any]],
) -> dict[str, str]:
    """Import, wait for the order that says which worker this is, and be as if just started.

    The parent of standbys returns from here in each standby that it forks. The functions are
    child.py's, which is no module here.
    """
    first = order["path"].split("\0")
    if sys.flags.safe_path and order["becomes"] != "function":  # whose path is the agent's
        first = []
    sys.path[:0] = first
    arguments, sys.argv = sys.argv, sys.argv[1:]
    before = dict(os.environ)
    with socket.socket(fileno=int(order["orders"])) as orders:
        if "forks" in order:
            parent = load("standby_parent_main")["Parent"](order, orders, before, load)
            parent.delay(float(order["delay"]))
            if order["forks"] == "yes":
                _import_all(order)
            own: socket.socket = parent.serve(tie_to)
        else:
            if float(order["delay"]):
                order_comes = select.poll()  # unlike `select`, for descriptors of any number
                order_comes.register(orders, select.POLLIN)
                order_comes.poll(1000 * float(order["delay"]))
            _import_all(order)
            own = orders
        with own:
            received = receive_order(own)
    if received is None:
        os._exit(0)
    new, environment, (stdout, stderr, *payload) = received
    for entry in first:
        if entry in sys.path:
            sys.path.remove(entry)
    sys.argv = arguments
    # What the imports set themselves stays, as it would after an import by the program.
    os.environ.update({n: value for n, value in environment.items() if before.get(n) != value})
    os.chdir(new["cwd"])
    for number, stream in ((1, stdout), (2, stderr)):
        printed = os.pread(number, os.fstat(number).st_size, 0)
        os.dup2(stream, number)
        os.close(stream)
        while printed:
            printed = printed[os.write(number, printed) :]
    if payload:
        new["payload"], new["inherited"] = str(payload[0]), ",".join(map(str, payload[1:]))
    return new


def _import_all(order: Mapping[str, str]) -> None:
    for module in order["modules"].split(","):
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"holdfast: cannot import {module} ahead of time: {why}\n")
