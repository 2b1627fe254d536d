"""A worker in a process of its own: `api_worker.py NAME OPTIONS`, both for `init_rpc`.

It says "ready" when it is there. For each line that it is told, a worker's name, it calls that one
and says what came of it. When its input ends it says what `shutdown` returned.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from holdfast.rpc.api import get_worker_info, init_rpc, rpc_sync, shutdown

visits: list[str] = []


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


def identify() -> tuple[str, int, int]:
    """Say where this runs."""
    info = get_worker_info()
    return info.name, info.id, os.getpid()


def visit(by: str) -> int:
    """Count a call; return how many there were."""
    visits.append(by)
    return len(visits)


def visit_from(by: str, to: str) -> int:
    """Visit one worker from another one."""
    return int(rpc_sync(by, rpc_sync, args=(to, visit, (by,))))


def stay() -> None:
    """Do not return."""
    signal.pause()


def visited() -> list[str]:
    """Return the names of the callers."""
    return visits


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[2])
    ending = options.pop("ending", {})
    try:
        init_rpc(sys.argv[1], **options)
    except Exception as error:
        say([type(error).__name__, str(error)])
        return
    say("ready")
    for line in iter(sys.stdin.readline, ""):
        try:
            say(rpc_sync(line.strip(), visit, args=(sys.argv[1],)))
        except Exception as error:
            say([type(error).__name__, str(error)])
    say(shutdown(**ending))


if __name__ == "__main__":
    from tests.unit.rpc import api_worker  # as the callees know it

    api_worker.main()
