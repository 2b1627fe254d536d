"""What the command line's exit codes mean.

    0    done
    1    the key is not there; a step that is replayed differs
    2    wrong use: the command must be changed
    69   something is unavailable: trying again may help
    70   a bug in holdfast
    74   standard output cannot be written
    75   timed out
    76   the other side broke the protocol, or does not speak it
    77   refused: authentication or permission
    79   a user stopped the job: holdfast stop
    80   the same failure came too often at the same step: --max-same-failures
    130  interrupted

Those from 69 to 77 are the ones that BSD's sysexits has for these cases. A job whose workers
failed ends with the code of the first cause: the worker's own, or 128 + the signal that killed it.
A command that a signal ended gives 128 + the signal.
"""

from __future__ import annotations

from holdfast.errors import BUG, exit_code

__all__ = ["BUG", "DIFFERS", "INTERRUPTED", "MISSING", "NO_OUTPUT", "TIMED_OUT", "exit_code"]

MISSING = 1
DIFFERS = 1
NO_OUTPUT = 74
TIMED_OUT = 75
INTERRUPTED = 130
