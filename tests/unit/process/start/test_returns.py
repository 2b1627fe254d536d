"""What a function returned is read back, and what cannot be is told with its rank."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from holdfast.errors import PeerViolation
from holdfast.process.spec import Function, Script
from holdfast.process.start.returns import read_return
from tests.unit.process.workers import launch_of


def nothing() -> None: ...


def test_a_value_is_read(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, Function(nothing))
    launch.result_file.write_bytes(pickle.dumps({"a": Path("b")}))
    assert read_return(launch) == {"a": Path("b")}


def test_what_is_no_function_returned_nothing(tmp_path: Path) -> None:
    assert read_return(launch_of(tmp_path, Script("x.py"))) is None


def test_a_function_that_ended_its_process_returned_nothing(tmp_path: Path) -> None:
    assert read_return(launch_of(tmp_path, Function(nothing))) is None


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, Function(nothing), rank=3)
    launch.result_file.mkdir()
    with pytest.raises(PeerViolation, match="what nothing returned on rank 3 cannot be read: Is a"):
        read_return(launch)


@pytest.mark.parametrize("data", [b"", b"garbage", b"cno_such_module\nname\n."])
def test_a_value_that_cannot_be_read_is_told(tmp_path: Path, data: bytes) -> None:
    launch = launch_of(tmp_path, Function(nothing))
    launch.result_file.write_bytes(data)
    with pytest.raises(PeerViolation, match="what nothing returned on rank 0 cannot be read: "):
        read_return(launch)
