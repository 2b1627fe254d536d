"""What the forker does: start a program for each order that comes, as a child of the agent.

Loaded by child.py, which has made the process ours: it is in the workers' control group, has their
limits, and handles signals as a fresh process does. A program inherits all of that. What is left
for each one costs a fork of this small process and no start of an interpreter.

An order is its length in 4 bytes and words with a null byte between them: the order's number, the
processors, how many arguments there are, the executable, the arguments, the variables. With its
first byte come the descriptors of the current folder, of stdout and of stderr. The new process
writes the order's number and its own to the pipe of answers as soon as it leads its process group,
and then becomes the program. If none could be forked, the number of the process is 0.

Nothing here may import holdfast: see child.py.
"""

from __future__ import annotations

import _socket  # `socket` would cost many others
import os
import sys

TYPE_CHECKING = False  # the real one would cost the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import NoReturn

__all__ = ["ANSWER_BYTES", "CALLS", "LENGTH_BYTES", "serve"]

CALLS = {"x86_64": 56, "aarch64": 220}
"""The number of the system call `clone`, by the machine's name."""
ANSWER_BYTES = 8
LENGTH_BYTES = 4

_CLONE_PARENT = 0x8000
_SIGCHLD = 17
_DESCRIPTORS = 3


def serve(
    order: Mapping[str, str],
    call_native: Callable[..., int],
    tie_to: Callable[[int], None],
    run_on: Callable[[Iterable[int]], None],
    run_program: Callable[[bytes, list[bytes], Mapping[bytes, bytes]], NoReturn],
) -> None:
    """Read orders until there are no more.

    The functions are child.py's, which is no module here.
    """
    parent, answers = int(order["parent"]), int(order["answers"])
    if os.getppid() != parent:  # a wrapper of the interpreter stands between the agent and us: no
        return  # process that we start would be the agent's child
    orders = _socket.socket(fileno=int(order["orders"]))
    for ours in (orders.fileno(), answers):
        os.set_inheritable(ours, False)
    for stream in (0, 1, 2):  # in the place of a closed one, an order's descriptor would come
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    flags = _CLONE_PARENT | _SIGCHLD
    while received := _receive(orders):
        data, (folder, stdout, stderr) = received
        pid = call_native("syscall", CALLS[os.uname().machine], flags, 0, 0, 0, 0)
        if pid == 0:
            try:
                os.setsid()
                tie_to(parent)
                number, cpus, count, program, *words = data.split(b"\0")
                os.write(answers, _answer(number, os.getpid()))
                os.dup2(stdout, 1)
                os.dup2(stderr, 2)
                os.fchdir(folder)
                if cpus:
                    run_on(map(int, cpus.split(b",")))
                variables = (word.partition(b"=") for word in words[int(count) :])
                environment = {name: value for name, _, value in variables}
                run_program(program, words[: int(count)], environment)
            finally:
                os._exit(126)
        if pid < 0:
            os.write(answers, _answer(data.partition(b"\0")[0], 0))
        for descriptor in (folder, stdout, stderr):
            os.close(descriptor)


def _answer(number: bytes, pid: int) -> bytes:
    numbers = (int(number), pid)
    return b"".join(one.to_bytes(ANSWER_BYTES // 2, sys.byteorder) for one in numbers)


def _receive(orders: _socket.socket) -> tuple[bytes, list[int]] | None:
    """Wait for an order and its descriptors; None if no more can come."""
    room, wait = _socket.CMSG_LEN(4 * _DESCRIPTORS), _socket.MSG_WAITALL
    data, ancillary, _, _ = orders.recvmsg(LENGTH_BYTES, room, wait | _socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    descriptors = [number for _, _, sent in ancillary for number in memoryview(sent).cast("i")]
    return orders.recv(int.from_bytes(data, "little"), wait), descriptors
