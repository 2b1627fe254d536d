"""The first process of a host that tests have made: `host_init.py JSON`, in namespaces of its own.

It gives the host its name and folders, says "ready", and reaps orphans until its standard input
ends; everything on the host ends with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

STASH = Path("/srv")


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, timeout=60)


def mask(over: dict[str, str], keep: list[str]) -> None:
    """Put files and folders of the host's own over those of the machine.

    What is kept of the machine is where it was, also within a folder that is masked. All of it is
    gathered first, since a mask may hide where the next thing comes from.
    """
    mount("-t", "tmpfs", "tmpfs", str(STASH))
    hidden = [path for path in keep if any(Path(path).is_relative_to(one) for one in over)]
    gathered: list[tuple[Path, Path]] = []
    for own, target in [*((own, path) for path, own in over.items()), *((p, p) for p in hidden)]:
        stashed = STASH / str(len(gathered))
        stashed.mkdir() if Path(own).is_dir() else stashed.touch()
        mount("--rbind", own, str(stashed))
        gathered.append((stashed, Path(target)))
    for stashed, place in gathered:
        if not place.exists():
            place.mkdir(parents=True)
        mount("--rbind", str(stashed), str(place))


def main() -> None:
    wish = json.loads(sys.argv[1])
    mount("--make-rprivate", "/")
    mask(wish["over"], wish["keep"])
    socket.sethostname(wish["name"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=60)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([0, reading], [], [])
        if 0 in ready and not os.read(0, 4096):
            return
        if reading in ready:
            os.read(reading, 4096)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


if __name__ == "__main__":
    main()
