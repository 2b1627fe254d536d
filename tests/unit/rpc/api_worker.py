"""A worker in a process of its own: `api_worker.py NAME OPTIONS`, both for `init_rpc`.

It says "ready" when it is there, waits until its input ends, and says what `shutdown` returned.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from holdfast.rpc.api import get_worker_info, init_rpc, shutdown


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


def who() -> tuple[str, int, int]:
    """Say where this runs."""
    info = get_worker_info()
    return info.name, info.id, os.getpid()


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[2])
    ending = options.pop("ending", {})
    try:
        init_rpc(sys.argv[1], **options)
    except Exception as error:
        say([type(error).__name__, str(error)])
        return
    say("ready")
    sys.stdin.read()
    say(shutdown(**ending))


if __name__ == "__main__":
    main()
