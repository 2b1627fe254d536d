"""Binding torch's names to ours: in this process, and in its children. Each test in a new one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import env
from holdfast.torch_compat import SITE, installed
from holdfast.torch_compat.__main__ import USAGE
from holdfast.torch_compat.patching import is_bound

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
assert new.PyRRef.__module__ == "holdfast.torch_compat.rpc.rrefs"
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

MAIN_OF_A_CHILD = """
import torch.distributed.rpc as rpc
from torch.distributed.rpc import RRef, init_rpc
def work(path):
    kept, taken = [rpc], init_rpc
    import holdfast.torch_compat
    holdfast.torch_compat.install()
    import torch.distributed.rpc as new
    assert rpc is new and RRef is new.RRef and init_rpc is new.init_rpc
    options = kept[0].TensorPipeRpcBackendOptions(init_method=f"file://{path}")
    taken("w0", rank=0, world_size=1, rpc_backend_options=options)
    agent = type(kept[0].api._get_current_rpc_agent()).__module__
    print(agent, kept[0].rpc_sync("w0", divmod, args=(7, 2)), RRef(3).to_here())
    kept[0].shutdown()
"""

SHOW = """
import sys
assert "holdfast.torch_compat" not in sys.modules or __name__ == "__main__" and len(sys.argv) > 1
import torch
print(torch.distributed.rpc.TensorPipeAgent.__module__, *sys.argv[1:])
"""


def ended(*args: str, path: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Run Python; return its exit code, and what it has printed and complained."""
    variables = {**env.variables(), "PYTHONPATH": ":".join([*path, SOURCE])}
    done = subprocess.run(
        [sys.executable, *args],
        env=variables,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def run(*args: str, path: tuple[str, ...] = ()) -> str:
    code, told, complained = ended(*args, path=path)
    assert code == 0, complained
    return told


def test_every_name_that_was_taken_before_is_ours_afterwards() -> None:
    """Proves BN-1 and BN-2."""
    assert run("-W", "ignore", "-c", BOUND) == "bound\n"


def test_the_main_module_of_a_child_of_multiprocessing_has_ours(tmp_path: Path) -> None:
    """Proves BN-2 and BN-3: multiprocessing runs it by this call, in no module's namespace."""
    (tmp_path / "main.py").write_text(MAIN_OF_A_CHILD, encoding="utf-8")
    child = (
        "import runpy, sys; main = runpy.run_path(sys.argv[1], run_name='__mp_main__'); "
        "main['work'](sys.argv[2])"
    )
    told = run("-W", "ignore", "-c", child, str(tmp_path / "main.py"), str(tmp_path / "meet"))
    assert told == "holdfast.torch_compat.rpc.agents (3, 1) 3\n"


def test_a_child_has_it_as_soon_as_it_has_torch(tmp_path: Path) -> None:
    """And a sitecustomize that ours hides is run all the same."""
    (tmp_path / "sitecustomize.py").write_text("print('hidden')\n", encoding="utf-8")
    found = run("-c", SHOW, path=(str(SITE), str(tmp_path)))
    assert found == "hidden\nholdfast.torch_compat.rpc.agents\n"


def test_a_child_has_it_also_if_it_has_asked_before_whether_torch_is_there() -> None:
    """Proves AF-1."""
    asked = "import importlib.util; assert importlib.util.find_spec('torch')\n"
    assert run("-c", asked + SHOW, path=(str(SITE),)) == "holdfast.torch_compat.rpc.agents\n"


def test_a_child_without_torch_has_nothing() -> None:
    program = "import json, sys; print('holdfast' in sys.modules, 'torch' in sys.modules)"
    assert run("-c", program, path=(str(SITE),)) == "False False\n"


def test_a_script_and_a_module_run_with_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SHOW, encoding="utf-8")
    command = ("-m", "holdfast.torch_compat")
    assert run(*command, str(tmp_path / "program.py"), "a", "-b") == (
        "holdfast.torch_compat.rpc.agents a -b\n"
    )
    assert run(*command, "-m", "program", "c", path=(str(tmp_path),)) == (
        "holdfast.torch_compat.rpc.agents c\n"
    )


LAUNCHER = """
import os, sys
print("torch" in sys.modules, os.environ["PYTHONPATH"].split(":")[0] == sys.argv[1])
import torch
behind = ("holdfast.agent", "holdfast.launch", "torch.distributed.elastic")
print([name for name in behind if name in sys.modules])
import torch.distributed.launcher as launcher
print(launcher.api.LocalElasticAgent.__module__)
print(torch.distributed.elastic.agent.server.local_elastic_agent.start_processes.__module__)
"""


def test_a_launcher_pays_for_what_it_imports(tmp_path: Path) -> None:
    """Proves BN-4."""
    (tmp_path / "program.py").write_text(LAUNCHER, encoding="utf-8")
    told = run("-m", "holdfast.torch_compat", str(tmp_path / "program.py"), str(SITE))
    ours = "holdfast.torch_compat.elastic"
    assert told == f"False True\n[]\n{ours}.agent\n{ours}.processes\n"


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
        (("--what",), ""),
        (("nowhere.py",), "nowhere.py: no such file; "),
        (("-m", "no.where"), "no.where: no such module; "),
    ],
)
def test_without_a_program_it_says_what_is_needed_in_one_line(
    args: tuple[str, ...], said: str
) -> None:
    assert ended("-m", "holdfast.torch_compat", *args) == (2, "", f"{said}{USAGE}\n")


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_no_error(word: str) -> None:
    assert ended("-m", "holdfast.torch_compat", word) == (0, f"{USAGE}\n", "")


AFTERWARDS = """
import os, sys, threading
main = sys.modules["__main__"]
print(__file__ == os.path.abspath(sys.argv[0]), __spec__ is not None, vars(main) is globals())
def twice(x): return 2 * x
def late():
    threading.main_thread().join()
    print(sys.modules["__main__"] is main and main.twice(4))
threading.Thread(target=late).start()
"""


@pytest.mark.parametrize("words", [("sub/program.py",), ("-m", "sub.program")])
def test_the_program_is_the_main_module_also_when_its_last_line_was_run(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads, and what is done at the exit, find their functions where they were."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "program.py").write_text(AFTERWARDS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    told = run("-m", "holdfast.torch_compat", *words)
    assert told == run(*words) == f"True {words[0] == '-m'} True\n8\n"


def test_without_torch_it_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SHOW, encoding="utf-8")
    hide = "import runpy, sys; sys.modules['torch'] = None; del sys.argv[0]; "
    run_it = "runpy.run_module('holdfast.torch_compat', run_name='__main__', alter_sys=True)"
    found = ended("-c", hide + run_it, "holdfast.torch_compat", str(tmp_path / "program.py"))
    assert found == (1, "", "holdfast.torch_compat: needs torch, which is not installed\n")


LATE = """
import os, sys
import torch.distributed.rpc as rpc
import holdfast.torch_compat as compat
options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{sys.argv[1]}")
rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=options)
try:
    compat.install()
except Exception as error:
    print(error)
assert rpc.rpc_sync("w0", divmod, args=(7, 2)) == (3, 1), "it is not lost"
rpc.shutdown()
compat.install()
print(compat.installed())
"""


def test_it_is_refused_while_torchs_own_rpc_runs(tmp_path: Path) -> None:
    told = run("-W", "ignore", "-c", LATE, str(tmp_path / "meet"))
    said = "holdfast.torch_compat.install: torch's RPC runs: do it before init_rpc"
    assert told == f"{said}\nTrue\n"


def test_asking_binds_nothing() -> None:
    assert installed() == is_bound()
