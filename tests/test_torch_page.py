"""The page about torch names every flag of torchrun, and every name that torch has, as they are."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from holdfast import env
from holdfast.errors import UsageError
from tests import torch_versions

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "torch.md"
WITHIN_S = 110

LOOK = """
import importlib, json, pkgutil, sys, types
import holdfast.torch_compat
holdfast.torch_compat.install()
import torch.distributed.run

def modules():
    for top in ("rpc", "autograd", "optim", "nn", "launcher", "run", "elastic"):
        module = importlib.import_module("torch.distributed." + top)
        yield module
        for one in pkgutil.walk_packages(getattr(module, "__path__", ()), module.__name__ + "."):
            if "._" in one.name and not one.name.endswith("._testing"):
                continue
            try:
                yield importlib.import_module(one.name)
            except ModuleNotFoundError as error:
                assert error.name in ("urllib3", "etcd"), error  # what torch's etcd needs

def names(module):
    listed = getattr(module, "__all__", None)
    for name, value in vars(module).items():
        home = getattr(value, "__module__", None) or ""
        if name.startswith("_") or isinstance(value, types.ModuleType):
            continue
        is_named = isinstance(value, type) or getattr(value, "__name__", None) == name
        of_binding = is_named and home.startswith(BINDING)
        within = home.startswith(module.__name__) and hasattr(value, "__name__")
        if of_binding or (name in listed if listed is not None else within):
            yield name, home.startswith("holdfast.")

BINDING = ("torch._C._distributed_rpc", "torch._C._distributed_autograd", "holdfast.")
flags = [one.option_strings for one in torch.distributed.run.get_args_parser()._actions]
found = {one.__name__.removeprefix("torch.distributed."): dict(names(one)) for one in modules()}
print(json.dumps({"flags": [one for one in flags if one], "names": found}))
"""


def table(title: str) -> list[list[str]]:
    """Read the table of a section: its rows without the head, each by its cells."""
    text = PAGE.read_text(encoding="utf-8")
    _, _, rest = text.partition(f"\n## {title}\n")
    section, _, _ = rest.partition("\n## ")
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[1:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@cache
def theirs() -> Any:
    """Return the flags and the names that torch has, and which of those are ours."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOOK],
        env={**env.variables(), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_versions_are_those_that_are_tested() -> None:
    """The newest is the one that `make` installs, and the one that is here is among them."""
    versions = torch_versions.listed()
    assert versions == sorted(versions, key=lambda text: [*map(int, text.split("."))], reverse=True)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"\nTORCH := {versions[0]}." in makefile
    assert f"those of torch {versions[0]}: a test" in PAGE.read_text(encoding="utf-8")
    assert torch_versions.installed() in versions


@torch_versions.needs_newest
def test_every_flag_of_torchrun_has_its_line() -> None:
    said = [flag for row in table("Flags") for flag in quoted(row[0])]
    assert sorted(said) == sorted(
        flag
        for flags in theirs()["flags"]
        for flag in flags
        if "_" not in flag and flag not in {"-h", "--help"}
    )


@torch_versions.needs_newest
def test_every_name_stands_where_it_belongs() -> None:
    wrong = []
    for module, *cells in table("Names"):
        has = theirs()["names"][quoted(module)[0]]
        for column, cell in enumerate(cells):
            wrong += [
                f"{module}: {name}" for name in quoted(cell) if has.get(name) != (column == 0)
            ]
    assert wrong == []


@torch_versions.needs_newest
def test_every_name_that_torch_has_is_told() -> None:
    """At one of the modules of a package that have it."""
    said = {
        (package_of(quoted(module)[0]), name)
        for module, *cells in table("Names")
        for cell in cells
        for name in quoted(cell)
    }
    missing = [
        f"{module}.{name}"
        for module, has in theirs()["names"].items()
        for name in has
        if (package_of(module), name) not in said
    ]
    assert missing == []


def package_of(module: str) -> str:
    """Return `elastic.timer` of `elastic.timer.api`, `rpc` of `rpc.api`."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "elastic" else 1])


def test_the_errors_are_shown_as_they_are() -> None:
    from holdfast.torch_compat import rpc_binding
    from holdfast.torch_compat.rpc import rrefs, scripts

    shown = PAGE.read_text(encoding="utf-8")
    assert scripts.OUT_OF_REACH.format("rpc_sync") in shown
    said = " of holdfast, which TorchScript cannot take>"
    assert said in shown
    assert said in inspect.getsource(rrefs.PyRRef.__repr__)
    assert rpc_binding.CALLER_ALONE in shown
    with pytest.raises(UsageError) as caught:
        rpc_binding.RPC_NAMES["_enable_server_process_global_profiler"]()
    assert str(caught.value) in shown


@pytest.mark.parametrize("title", ["Flags", "Names", "Differences"])
def test_every_row_is_whole(title: str) -> None:
    rows = table(title)
    assert len(rows) > 10
    assert {len(row) for row in rows} == {len(rows[0])}
