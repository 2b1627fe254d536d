"""What a worker's function returned: the one place that unpickles what a worker wrote.

The file lies in a folder that only this user can enter, and was written by a process that runs
the user's own program.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import HoldfastError, PeerViolation
from holdfast.process.spec import Function, Launch, entrypoint_name

__all__ = ["read_return"]


def read_return(launch: Launch) -> Any:
    """Return what the function of a worker that ended well has returned.

    None for what is no function, and for a function that did not come to return anything, since
    it ended its process: `sys.exit()` and `os._exit(0)` are good ends. PeerViolation if the value
    cannot be read.
    """
    if not isinstance(launch.entrypoint, Function):
        return None
    # A class that the worker found in its main module names it so; this makes the name known.
    import multiprocessing  # noqa: F401
    import pickle

    whose = f"what {entrypoint_name(launch.entrypoint)} returned on rank {launch.rank}"
    try:
        data = launch.result_file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PeerViolation(f"{whose} cannot be read: {error.strerror}") from None
    try:
        return pickle.loads(data)  # noqa: S301
    except HoldfastError:
        raise
    except Exception as error:  # whatever the classes of the value do
        raise PeerViolation(f"{whose} cannot be read: {type(error).__name__}: {error}") from error
