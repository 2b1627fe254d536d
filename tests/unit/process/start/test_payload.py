"""Functions and arguments that reach another process: by name, and by value."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from io import BytesIO
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.process.spec import Function, StartMethod
from holdfast.process.start.payload import write_payload
from holdfast.process.start.returns import read_return
from holdfast.process.start.spawn import Starter
from tests.unit.process.workers import launch_of, run

# A program that is in no file: its function, its class and a lambda are sent by value, and what the
# worker makes of the class is of the very class.
PROGRAM = """
import sys
from pathlib import Path
from holdfast.process.spec import Function, StartMethod
from holdfast.process.start.returns import read_return
from holdfast.process.start.spawn import Starter
from tests.unit.process.workers import launch_of, run

class Value:
    def __init__(self, text):
        self.text = text

def work(value, change):
    return Value(change(value.text))

folder, method = Path(sys.argv[1]), StartMethod(sys.argv[2])
starter = Starter()
call = Function(work, (Value("sent"), lambda text: text + " back"), method)
ended = run(starter, launch_of(folder, call))
value = read_return(ended.launch)
print(type(value) is Value, value.text)
starter.close()
"""
ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("method", [StartMethod.SPAWN, StartMethod.FORKSERVER])
@pytest.mark.parametrize("by", ["-c", "-"])
def test_what_a_program_in_no_file_defines_is_sent_by_value(
    tmp_path: Path, by: str, method: StartMethod
) -> None:
    program = [PROGRAM] if by == "-c" else []
    done = subprocess.run(
        [sys.executable, by, *program, str(tmp_path), method],
        input=PROGRAM,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("True sent back\n", 0), done.stderr


def written(function: Function) -> tuple[bytes, list[int]]:
    file = BytesIO()
    descriptors = write_payload(function, "Worker-0", file)
    assert file.tell() == 0
    return file.getvalue(), descriptors


def module_level(*values: Any) -> tuple[Any, ...]:
    return values


def test_what_can_be_imported_goes_by_name() -> None:
    by_name, _ = written(Function(module_level, (1,)))
    assert b"module_level" in by_name
    assert b"cloudpickle" not in by_name


@pytest.mark.parametrize("method", [StartMethod.SPAWN, StartMethod.FORKSERVER])
def test_a_closure_goes_by_value_with_a_connection_beside_it(
    tmp_path: Path, method: StartMethod
) -> None:
    """A descriptor is counted once, though the call is pickled twice."""
    ours, theirs = Pipe()
    word = "told"
    with ours, theirs:
        call = Function(lambda to: to.send((word, os.getpid())), (theirs,), method)
        assert len(written(call)[1]) == 1
        starter = Starter()
        try:
            ended = run(starter, launch_of(tmp_path, call))
        finally:
            starter.close()
        assert read_return(ended.launch) is None
        assert ours.recv()[0] == "told"


def test_what_can_be_sent_in_no_way_is_refused() -> None:
    with pytest.raises(UsageError, match=r"function module_level with its arguments cannot be"):
        written(Function(module_level, (threading.Lock(),)))
