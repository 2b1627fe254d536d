"""Binding torch's names to ours: in this process, and in its children. Each test in a new one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import env
from holdfast.torch_compat import installed
from holdfast.torch_compat.__main__ import USAGE
from holdfast.torch_compat.binding import SITE, is_bound

SOURCE = str(Path(holdfast.__file__).parents[1])
WITHIN_S = 110

BOUND = """
import torch
import torch.distributed.rpc as rpc
from torch.distributed.rpc import RRef, rpc_sync
import torch.distributed.optim
old = (rpc, RRef, rpc_sync, torch._C._distributed_rpc)
import holdfast.torch_compat as compat
assert not compat.installed()
compat.install()
new = torch.distributed.rpc
compat.install()
assert torch.distributed.rpc is new and compat.installed()
assert torch._C._distributed_rpc is not old[3]
assert (rpc, RRef, rpc_sync) == (new, new.RRef, new.rpc_sync), "what the program took before"
assert rpc is not old[0] and RRef is not old[1]
assert new.PyRRef.__module__ == "holdfast.torch_compat.rrefs"
assert torch._jit_internal.RRef is new.RRef and torch._jit_internal.PyRRef is new.PyRRef
assert torch.jit.annotations.is_rref(new.RRef[int])
assert torch.distributed.optim.DistributedOptimizer.__init__.__globals__["rpc"] is new
assert issubclass(new.TensorPipeRpcBackendOptions, new.RpcBackendOptions)
import torch.distributed.rpc._testing
assert new.backend_registry.backend_registered("FAULTY_TENSORPIPE")
import torch.distributed.autograd
torch.distributed.autograd._init(0)
print("bound")
"""

SHOW = """
import sys
assert "holdfast.torch_compat" not in sys.modules or __name__ == "__main__" and len(sys.argv) > 1
import torch
print(torch.distributed.rpc.TensorPipeAgent.__module__, *sys.argv[1:])
"""


def run(*args: str, path: tuple[str, ...] = ()) -> str:
    variables = {**env.variables(), "PYTHONPATH": ":".join([*path, SOURCE])}
    done = subprocess.run(
        [sys.executable, *args],
        env=variables,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_name_that_was_taken_before_is_ours_afterwards() -> None:
    """Proves BN-1 and BN-2."""
    assert run("-W", "ignore", "-c", BOUND) == "bound\n"


def test_a_child_has_it_as_soon_as_it_has_torch(tmp_path: Path) -> None:
    """And a sitecustomize that ours hides is run all the same."""
    (tmp_path / "sitecustomize.py").write_text("print('hidden')\n", encoding="utf-8")
    found = run("-c", SHOW, path=(str(SITE), str(tmp_path)))
    assert found == "hidden\nholdfast.torch_compat.agents\n"


def test_a_child_has_it_also_if_it_has_asked_before_whether_torch_is_there() -> None:
    """Proves AF-1."""
    asked = "import importlib.util; assert importlib.util.find_spec('torch')\n"
    assert run("-c", asked + SHOW, path=(str(SITE),)) == "holdfast.torch_compat.agents\n"


def test_a_child_without_torch_has_nothing() -> None:
    program = "import json, sys; print('holdfast' in sys.modules, 'torch' in sys.modules)"
    assert run("-c", program, path=(str(SITE),)) == "False False\n"


def test_a_script_and_a_module_run_with_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SHOW, encoding="utf-8")
    command = ("-m", "holdfast.torch_compat")
    assert run(*command, str(tmp_path / "program.py"), "a", "-b") == (
        "holdfast.torch_compat.agents a -b\n"
    )
    assert run(*command, "-m", "program", "c", path=(str(tmp_path),)) == (
        "holdfast.torch_compat.agents c\n"
    )


def test_a_safe_path_stays_as_it_is(tmp_path: Path) -> None:
    library, other = tmp_path / "library", tmp_path / "other"
    for folder in (library, other):
        folder.mkdir()
        (folder / "which.py").write_text(f"print({folder.name!r})\n", encoding="utf-8")
    (other / "program.py").write_text("import which\n", encoding="utf-8")
    command = ("-P", "-m", "holdfast.torch_compat")
    assert run(*command, str(other / "program.py"), path=(str(library),)) == "library\n"
    assert run(*command, "-m", "which", path=(str(library),)) == "library\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), ""),
        (("-m",), ""),
        (("--help",), ""),
        (("nowhere.py",), "nowhere.py: no such file; "),
        (("-m", "no.where"), "no.where: no such module; "),
    ],
)
def test_without_a_program_it_says_what_is_needed_in_one_line(
    args: tuple[str, ...], said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.torch_compat", *args],
        env={**env.variables(), "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"{said}{USAGE}\n"


def test_asking_binds_nothing() -> None:
    assert installed() == is_bound()
