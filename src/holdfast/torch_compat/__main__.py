"""Runs a program with torch's names bound to holdfast: `python -m holdfast.torch_compat …`."""

from __future__ import annotations

import os
import runpy
import sys

from holdfast.torch_compat import install

__all__: list[str] = []

USAGE = "usage: python -m holdfast.torch_compat [-m module | script.py] args…"


def main(args: list[str]) -> None:
    """Run a module or a script with these arguments."""
    if not args or args == ["-m"]:
        sys.exit(USAGE)
    install()
    if args[0] == "-m":
        sys.argv = args[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = args
    sys.path[0] = os.path.dirname(os.path.abspath(args[0]))
    runpy.run_path(args[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
