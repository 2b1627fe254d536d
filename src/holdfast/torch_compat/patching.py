"""Binds torch's names to ours, in this process and in the children that it will start.

`import torch` has imported `torch.distributed.rpc` by the time that a program can ask for ours. So
that package is imported anew over our binding, and what was taken from the old one before is put
right: global names of all code, of torch and of the program, are bound to the new one, and the old
modules, which local names and attributes may still refer to, get what the new ones have.

The launcher's names are bound when torch's elastic package is imported: what stands behind ours
costs as much as all the rest, and most workers need none of it.

Children get it by a folder on their PYTHONPATH, whose `sitecustomize` installs us after torch.

Guarantees
    BN-1  Binding twice is binding once.
    BN-2  No global name keeps what was taken from the old package: of a module, or of code that
          runs in a namespace of its own, as the main module of a child of multiprocessing does.
    BN-3  The old modules have what the new ones have, wherever they are kept.
    BN-4  What is torch's elastic package is ours before its importer can use it, and costs nothing
          before.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import torch

from holdfast.torch_compat import for_children
from holdfast.torch_compat.after import AfterImport
from holdfast.torch_compat.autograd.ddp import watch_ddp
from holdfast.torch_compat.autograd.optimizer import mend_when_imported
from holdfast.torch_compat.rpc.futures import collect_all
from holdfast.torch_compat.rpc.quick import shorten
from holdfast.torch_compat.rpc.scripts import watch_compiler
from holdfast.torch_compat.rpc_binding import stand_ins

__all__ = ["bind", "is_bound"]

_PACKAGES = ("torch.distributed.autograd", "torch.distributed.rpc")  # in the order of import
_OLD = (*_PACKAGES, "torch._C._distributed_autograd", "torch._C._distributed_rpc")
_ELASTIC = "torch.distributed.elastic"
_bound = False


def is_bound() -> bool:
    """Say whether torch's names are bound to ours."""
    return _bound


def bind() -> None:
    """Bind them."""
    global _bound  # noqa: PLW0603  # it is of the process
    if _bound:
        return
    _bound = True
    old = {name: module for name, module in sys.modules.items() if _within(name, _OLD)}
    for name, module in stand_ins().items():
        sys.modules[f"torch._C.{name}"] = module
        setattr(torch._C, name, module)
    torch._C._collect_all = collect_all
    for init in ("_dist_autograd_init", "_faulty_agent_init", "_rpc_init"):
        setattr(torch._C, init, lambda: True)  # it has been
    again = [name for name in old if _within(name, _PACKAGES)]
    for name in again:
        del sys.modules[name]
    for name in (*_PACKAGES, *again):
        importlib.import_module(name)
    torch.distributed.autograd, torch.distributed.rpc = (sys.modules[one] for one in _PACKAGES)
    shorten(torch.distributed.rpc)
    _replace(_pairs(old))
    for name in again:
        vars(old[name]).update(vars(sys.modules[name]))
    if _ELASTIC in sys.modules:
        _bind_elastic(sys.modules[_ELASTIC])
    else:
        AfterImport(_ELASTIC, _bind_elastic)
    mend_when_imported()
    watch_ddp()
    watch_compiler()
    for_children()


def _bind_elastic(_: ModuleType) -> None:
    from holdfast.torch_compat.elastic.names import register_backends, replacements

    _replace({id(before): (before, now) for before, now in replacements()})
    register_backends()


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def _pairs(old: dict[str, ModuleType]) -> dict[int, tuple[Any, Any]]:
    """Return what was in the old modules, by its identity, and what is there now by its name."""
    pairs: dict[int, tuple[Any, Any]] = {}
    for name, module in old.items():
        now = sys.modules[name]
        pairs[id(module)] = (module, now)
        for key, value in vars(module).items():
            home = getattr(value, "__module__", None)
            if isinstance(home, str) and _within(home, _OLD) and hasattr(now, key):
                pairs[id(value)] = (value, getattr(now, key))
    return {key: (before, now) for key, (before, now) in pairs.items() if before is not now}


def _replace(pairs: dict[int, tuple[Any, Any]]) -> None:
    for names in _namespaces():
        for key, value in list(names.items()):
            pair = pairs.get(id(value))
            if pair is not None and pair[0] is value:
                names[key] = pair[1]


def _namespaces() -> Iterable[dict[str, Any]]:
    """Return the global names of each module, and of each function that lives."""
    found = [getattr(module, "__dict__", None) for module in list(sys.modules.values())]
    found += [one.__globals__ for one in gc.get_objects() if type(one) is FunctionType]
    return {id(names): names for names in found if isinstance(names, dict)}.values()
