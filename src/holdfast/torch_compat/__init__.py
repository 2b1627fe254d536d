"""torch's RPC by holdfast: programs that are written for `torch.distributed.rpc` run unchanged.

    import holdfast.torch_compat
    holdfast.torch_compat.install()

or, with a program that is not to be touched at all:

    python -m holdfast.torch_compat script.py args…
    python -m holdfast.torch_compat -m module args…

Layout, in reading order
    after.py            acts after a module has been imported
    theirs.py           what stays torch's own
    tensors/            tensors on their way to another worker
    autograd/           distributed autograd: contexts, the graph, the backward pass
    rpc/                agents, calls and references, by torch's names
    autograd_binding.py distributed autograd, by the names of torch's binding
    rpc_binding.py      the modules that stand in for torch's binding
    elastic/            the launcher and its agents, by torch's names
    patching.py         binds torch's names to ours

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
    from holdfast.torch_compat.patching import bind

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

    patching = sys.modules.get("holdfast.torch_compat.patching")
    return patching is not None and patching.is_bound()
