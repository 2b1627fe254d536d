"""Ask Hydra, MPICH's launcher, over the descriptor that it gives its processes: PMI, version 1."""

from __future__ import annotations

import os
import select

from holdfast.clock import Deadline
from holdfast.errors import PeerViolation, TimeoutExpired
from holdfast.on.mpi import Hydra, Shared, decode_reply, encode_request

__all__ = ["share"]

_LINE_MAX = 4096
WITHIN_S = 300.0
"""How long all processes together may take to start."""


def share(known: Hydra, host: str, secret: str, within_s: float = WITHIN_S) -> tuple[Shared, str]:
    """Return what rank 0 has given here: its host, and the job's secret. All processes must call.

    TimeoutExpired if not all have in time.
    """
    ask = _Asking(known.fd, Deadline.after(within_s))
    ask("init", "response_to_init", pmi_version="1", pmi_subversion="1")
    job = ask("get_my_kvsname", "my_kvsname").get("kvsname", "")
    if known.rank == 0:
        for name, word in (("holdfast-host", host), ("holdfast-secret", secret)):
            ask("put", "put_result", kvsname=job, key=name, value=word)
    ask("barrier_in", "barrier_out")
    found = [
        ask("get", "get_result", kvsname=job, key=name).get("value", "")
        for name in ("holdfast-host", "holdfast-secret")
    ]
    ask("finalize", "finalize_ack")  # else the launcher takes the end of this process for a crash
    return Shared(job, found[0]), found[1]


class _Asking:
    """One question at a time."""

    def __init__(self, fd: int, deadline: Deadline) -> None:
        self._fd = fd
        self._deadline = deadline

    def __call__(self, command: str, answer: str, **words: str) -> dict[str, str]:
        try:
            os.write(self._fd, encode_request(command, **words))
            return decode_reply(self._line(command), answer)
        except TimeoutExpired:
            raise
        except OSError as error:
            raise PeerViolation(f"the launcher (PMI_FD): {error.strerror}") from None

    def _line(self, command: str) -> bytes:
        line = b""
        while not line.endswith(b"\n") and len(line) < _LINE_MAX:
            if not select.select([self._fd], [], [], self._deadline.remaining())[0]:
                raise TimeoutExpired(f"the launcher (PMI_FD) did not answer {command} in time")
            if not (chunk := os.read(self._fd, _LINE_MAX)):
                raise PeerViolation("the launcher (PMI_FD) is gone")
            line += chunk
        return line
