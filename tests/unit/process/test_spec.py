"""What to run, and how it ended: names for people, codes for shells."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from holdfast.process.spec import (
    Entrypoint,
    Exit,
    Function,
    Launch,
    Module,
    Program,
    Script,
    StartMethod,
    entrypoint_name,
    for_local_rank,
    forks,
)


class Trainer:
    def train(self) -> None: ...


NAMELESS = partial(print)


@pytest.mark.parametrize(
    ("entrypoint", "name"),
    [
        (Function(Trainer.train), "Trainer.train"),
        (Function(NAMELESS), repr(NAMELESS)),
        (Script("a/b/train.py", ("x",)), "train.py"),
        (Module("pkg.train"), "pkg.train"),
        (Program("/bin/sh", ("-c", "x")), "sh"),
        (Program("sh"), "sh"),
    ],
)
def test_names(entrypoint: Entrypoint, name: str) -> None:
    assert entrypoint_name(entrypoint) == name


def test_only_the_method_fork_forks_the_agent() -> None:
    assert forks(Function(print, (), StartMethod.FORK))
    assert not forks(Function(print, (), StartMethod.FORKSERVER))
    assert not forks(Program("true"))


def test_arguments_may_name_the_local_rank() -> None:
    script = Script("t.py", ("--out=${local_rank}/${local_rank}.txt", "$local_rank", "$$"), "py")
    assert for_local_rank(script, 3) == Script("t.py", ("--out=3/3.txt", "$local_rank", "$$"), "py")
    function = Function(print, (1, "${local_rank}", None, StartMethod.FORK))
    found = for_local_rank(function, 0)
    assert found == Function(print, (1, "0", None, StartMethod.FORK))
    assert type(found.args[3]) is StartMethod


@pytest.mark.parametrize(
    ("code", "ok", "shell_code", "text"),
    [
        (0, True, 0, "exit code 0"),
        (3, False, 3, "exit code 3"),
        (-9, False, 137, "killed by SIGKILL"),
        (-99, False, 227, "killed by signal 99"),
    ],
)
def test_ends(code: int, ok: bool, shell_code: int, text: str) -> None:
    end = Exit(code)
    assert (end.ok, end.shell_code, str(end)) == (ok, shell_code, text)


def test_the_files_of_a_worker_are_its_own(tmp_path: Path) -> None:
    launch = Launch(
        entrypoint=Script("t.py"),
        local_rank=0,
        rank=0,
        role="r",
        environment={"TOKEN": "hidden"},
        folder=tmp_path,
    )
    files = {launch.error_file, launch.stack_file, launch.progress_file, launch.result_file}
    assert len(files) == 4
    assert {file.parent for file in files} == {tmp_path}
    assert "hidden" not in repr(launch)
