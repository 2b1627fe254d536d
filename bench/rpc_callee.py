"""A process that is called: `python -m bench.rpc_callee SUBJECT FOLDER`.

Says "ready" when one may connect, and ends with its standard input.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from bench.rpc_subject import Subject
from bench.rpc_subjects import SUBJECTS
from bench.subjects import ROOT

__all__ = ["beside", "serve"]


@contextmanager
def beside(module: str, *words: str, within: Sequence[str] = ()) -> Iterator[Path]:
    """Run a program that is to be called; the context is the folder in which it can be met.

    `within` is put before the command, such as `unshare --net`.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [*within, sys.executable, "-m", module, *words, folder]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                if process.stdout.readline() != b"ready\n":
                    raise SystemExit(f"{' '.join(command)}: not ready")
                yield Path(folder)
            finally:
                process.stdin.close()


def serve(subject: Subject, folder: str) -> NoReturn:
    """Serve until standard input ends."""
    threading.Thread(target=_end, daemon=True).start()
    subject.serve(Path(folder), lambda: print("ready", flush=True))
    while True:
        threading.Event().wait()


def _end() -> None:
    sys.stdin.read()
    os._exit(0)  # whatever still runs


if __name__ == "__main__":
    serve(SUBJECTS[sys.argv[1]](), sys.argv[2])
