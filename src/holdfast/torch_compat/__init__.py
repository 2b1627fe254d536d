"""torch's RPC by holdfast: programs that are written for `torch.distributed.rpc` run unchanged.

    import holdfast.torch_compat
    holdfast.torch_compat.install()

or, with a program that is not to be touched at all:

    python -m holdfast.torch_compat script.py args…
    python -m holdfast.torch_compat -m module args…

Layout, in reading order
    after.py            acts after a module has been imported
    theirs.py           what stays torch's own
    contexts.py         contexts of distributed autograd
    tensors.py          how tensors are pickled
    devices.py          tensors on devices: where they arrive, and how they get there
    graph.py            where tensors leave a worker and arrive, in torch's graph
    wire.py             what torch's pickler makes of a value, on its way
    futures.py          futures of torch for calls of ours
    places.py           who is where, by a store of torch
    agents.py           agents by torch's names
    raised.py           what a Python function raised
    rrefs.py            references by torch's name
    serving.py          the callee's side of calls
    calls.py            calls, by the names of torch's binding
    quick.py            the short path of most calls
    ddp.py              DDP in a context of distributed autograd
    engine.py           what one worker does of a distributed backward pass
    autograd.py         distributed autograd, by the names of torch's binding
    optimizer.py        torch's distributed optimizer, without TorchScript
    scripts.py          calls from inside TorchScript, which are errors
    rpc_names.py        the modules that stand in for torch's binding
    elastic/            the launcher and its agents, by torch's names
    binding.py          binds torch's names to ours

`__main__.py` runs a program with it; the folder `site` lets children have it too.

The seam is torch's C++ binding (39 names). torch's Python above it stays, imported anew: that costs
milliseconds, and keeps each text and each private helper on which programs rely.
"""

from __future__ import annotations

from pathlib import Path

from holdfast import env

__all__ = ["SITE", "for_children", "install", "install_with_torch", "installed"]

SITE = Path(__file__).parent / "site"


def install() -> None:
    """Bind torch's names to holdfast, in this process and in the children that it will start.

    UsageError if RPC runs already: its agent, which is torch's, would be lost to the program.
    """
    import torch  # first: in a child that is what installs us

    from holdfast.errors import UsageError
    from holdfast.torch_compat.binding import bind

    if not installed() and torch._C._distributed_rpc._is_current_rpc_agent_set():
        raise UsageError("holdfast.torch_compat.install: torch's RPC runs: do it before init_rpc")
    bind()


def install_with_torch() -> None:
    """Install as soon as torch is imported, in this process and in the children that it will start.

    A launcher that never imports torch does not pay for it.
    """
    import sys

    from holdfast.torch_compat.after import AfterImport

    if "torch" in sys.modules:
        install()
    else:
        AfterImport("torch", lambda _: install())
        for_children()


def for_children() -> None:
    """Let interpreters that this process starts install as soon as they have torch."""
    env.add_to_path("PYTHONPATH", str(SITE))


def installed() -> bool:
    """Say whether they are."""
    import sys

    binding = sys.modules.get("holdfast.torch_compat.binding")
    return binding is not None and binding.is_bound()
