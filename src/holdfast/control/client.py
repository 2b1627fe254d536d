"""A command's end of the control channel: asks many agents at once, and clears what the dead left.

Guarantees
    CC-1  Asking many agents takes as long as the slowest one, and no longer than the deadline: one
          that does not answer is named, and the answers of the others are there.
    CC-2  An entry is cleared only if nothing listens behind it.
    CC-3  An answer is read only from a process of our own user, as the kernel says.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Sequence
from typing import Any

from holdfast.clock import Deadline
from holdfast.control.folder import EntryFolder
from holdfast.control.frames import receive_frame, send_frame
from holdfast.control.jobs import AgentEntry
from holdfast.control.messages import (
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    Request,
    decode_reply,
    encode_request,
)
from holdfast.errors import HoldfastError, TimeoutExpired, Unavailable
from holdfast.net.credentials import check_peer
from holdfast.records import dataclass
from holdfast.threads import start_thread

__all__ = ["AgentAnswer", "AgentGone", "ask", "ask_all"]


class AgentGone(Unavailable):
    """No agent is behind an entry any more; it has been cleared."""


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What an agent answered, or why there is no answer."""

    entry: AgentEntry
    fields: dict[str, Any] | None
    error: HoldfastError | None = None


def ask(
    folder: EntryFolder, entry: AgentEntry, request: Request, deadline: Deadline
) -> dict[str, Any]:
    """Ask one agent. AgentGone if there is none; TimeoutExpired, Refused or PeerViolation."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(deadline.remaining())
        try:
            folder.connect(sock, entry.token)
            check_peer(sock, None)
            send_frame(sock, encode_request(request), REQUEST_BYTES_MAX, deadline)
            return decode_reply(receive_frame(sock, REPLY_BYTES_MAX, deadline))
        except (FileNotFoundError, ConnectionRefusedError):
            folder.remove(entry.token)
            raise AgentGone(f"the agent with process {entry.pid} has ended") from None
        except (TimeoutExpired, TimeoutError, BlockingIOError):
            raise TimeoutExpired(
                f"the agent with process {entry.pid} does not answer: is it stopped?"
            ) from None
        except OSError as error:
            if isinstance(error, HoldfastError):
                raise
            why = error.strerror or error
            raise Unavailable(f"the agent with process {entry.pid}: {why}") from None


def ask_all(
    folder: EntryFolder, entries: Sequence[AgentEntry], request: Request, timeout_s: float
) -> list[AgentAnswer]:
    """Ask all of them at once (CC-1); those that have ended are left out."""
    deadline = Deadline.after(timeout_s)
    answers: queue.SimpleQueue[AgentAnswer] = queue.SimpleQueue()

    def ask_one(entry: AgentEntry) -> None:
        try:
            answers.put(AgentAnswer(entry, ask(folder, entry, request, deadline)))
        except HoldfastError as error:
            answers.put(AgentAnswer(entry, None, error))

    for entry in entries[1:]:
        start_thread(threading.Thread(target=ask_one, args=(entry,), daemon=True))
    if entries:
        ask_one(entries[0])
    found = {answer.entry.token: answer for answer in (answers.get() for _ in entries)}
    in_order = [found[entry.token] for entry in entries]
    return [answer for answer in in_order if not isinstance(answer.error, AgentGone)]
