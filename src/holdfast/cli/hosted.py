"""`holdfast run` on a host to which `holdfast run --hosts` has connected by ssh.

Started as `python -m holdfast.cli.hosted`: what to run, and the job's secret, come by standard
input, which from then on keeps the job alive.
"""

from __future__ import annotations

import os
import sys

from holdfast import env
from holdfast.cli import main as command_line
from holdfast.cli.arguments import one_line
from holdfast.cli.output import complain
from holdfast.errors import HoldfastError, exit_code
from holdfast.on.lifeline import follow, read_order

__all__ = ["main"]


def main() -> int:
    """Run what standard input says; return the exit code."""
    try:
        order = read_order(sys.stdin.fileno())
        lifeline = os.dup(sys.stdin.fileno())
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, sys.stdin.fileno())  # workers must not read it
        os.close(nowhere)
        env.hold_secret(order.secret)
        follow(lifeline)
    except HoldfastError as error:
        complain(f"holdfast: {one_line(str(error))}")
        return exit_code(error)
    return command_line.main(["run", *order.arguments])


if __name__ == "__main__":
    sys.exit(main())
