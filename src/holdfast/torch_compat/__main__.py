"""Runs a program with torch's names bound to holdfast: `python -m holdfast.torch_compat …`."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import NoReturn

from holdfast.process.start.child import run
from holdfast.torch_compat import install_with_torch

__all__: list[str] = []

USAGE = "usage: python -m holdfast.torch_compat [-m module | script.py] args…"


def main(args: list[str]) -> None:
    """Run a module or a script with these arguments."""
    if args and args[0] in ("-h", "--help"):
        sys.stdout.write(f"{USAGE}\n")
        return
    if not args or args == ["-m"] or (args[0].startswith("-") and args[0] != "-m"):
        _refuse(USAGE)
    if args[0] != "-m" and not os.path.exists(args[0]):
        _refuse(f"{args[0]}: no such file; {USAGE}")
    if importlib.util.find_spec("torch") is None:
        sys.exit("holdfast.torch_compat: needs torch, which is not installed")
    install_with_torch()
    if args[0] == "-m" and not _is_there(args[1]):
        _refuse(f"{args[1]}: no such module; {USAGE}")
    if not sys.flags.safe_path:
        del sys.path[0]  # where Python found us; what is run has its own place there
    ours = sys.modules["__main__"]
    ours.__spec__ = ours.__package__ = None  # what is run is no module of ours
    # It stays the main module when its last line has been run: threads, and what is done at the
    # exit, find their functions there.
    if args[0] == "-m":
        run({"kind": "module"}, args[1:])
    else:
        run({"kind": "script"}, args)


def _refuse(why: str) -> NoReturn:
    """End as programs do that were called in a wrong way."""
    sys.stderr.write(f"{why}\n")
    sys.exit(2)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # what it is in is there, and needs something that is not
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
