"""A function with its arguments, written for a process that calls it.

Pickling is multiprocessing's: queues, locks and connections may be among the arguments, and a
function is named by its module. What the other process cannot import by a name is sent by value,
with cloudpickle: functions and classes of a notebook, of the prompt, of `python -c`; lambdas,
closures, and what else pickle refuses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import IO, Any

from holdfast.errors import UsageError
from holdfast.process.spec import Function, entrypoint_name

__all__ = ["write_payload"]


def write_payload(function: Function, name: str, file: IO[bytes]) -> list[int]:
    """Write what the child needs to know of us, then the call; return what it must inherit.

    UsageError if the function or an argument can be sent neither by name nor by value.
    """
    from multiprocessing import reduction, spawn

    facts = vars(spawn)["get_preparation_data"](name)
    facts["authkey"] = bytes(facts["authkey"])
    importable = _can_import_main()
    if not importable:
        facts.pop("init_main_from_path", None)  # such as "<stdin>"
    call = (function.call, function.args, function.kwargs)
    try:
        data, descriptors = _pickled_call(call, importable)
    except Exception as error:  # whatever the classes of the arguments do
        raise UsageError(
            f"function {entrypoint_name(function)} with its arguments cannot be pickled: {error}; "
            f"use start_method=fork"
        ) from error
    reduction.dump(facts, file)
    file.write(data)
    file.seek(0)
    return descriptors


def _pickled_call(call: object, importable: bool) -> tuple[bytes, list[int]]:
    from multiprocessing import reduction

    with suppress(Exception):
        data, descriptors = _pickled(call, reduction.dump)
        if importable or b"__main__" not in data:  # which only this process knows
            return data, descriptors
    return _pickled(call, _dump_by_value)


def _can_import_main() -> bool:
    """Say whether another process finds what the main program defines: it is in a file."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (
        path is not None and os.path.exists(path)
    )


class _Sending:
    """Takes the place of multiprocessing's Popen while it pickles: it collects descriptors."""

    def __init__(self) -> None:
        from multiprocessing import popen_forkserver

        self.DupFd = vars(popen_forkserver)["_DupFd"]
        self.descriptors: list[int] = []

    def duplicate_for_child(self, descriptor: int) -> int:
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1


def _pickled(value: object, dump: Callable[[Any, Any], None]) -> tuple[bytes, list[int]]:
    """Return a value pickled for a child, and the descriptors that the child must inherit."""
    from multiprocessing import context

    sending, data = _Sending(), BytesIO()
    vars(context)["set_spawning_popen"](sending)
    try:
        dump(value, data)
    finally:
        vars(context)["set_spawning_popen"](None)
    return data.getvalue(), sending.descriptors


def _dump_by_value(value: object, file: IO[bytes]) -> None:
    """Pickle with cloudpickle what multiprocessing's own reducers leave to it."""
    from collections import ChainMap
    from multiprocessing.reduction import ForkingPickler

    import cloudpickle

    ours = ChainMap({}, vars(ForkingPickler)["_extra_reducers"], cloudpickle.Pickler.dispatch_table)

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table = ours  # read when a pickler is made

    ByValue(file).dump(value)
