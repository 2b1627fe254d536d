"""Is found by children of a process that has installed holdfast.torch_compat: installs it there.

Not at once: torch costs seconds, and most children do not need it. When torch has been imported,
before any code can use it. A sitecustomize that this one hides is run as well.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType

__all__: list[str] = []

_HERE = os.path.dirname(os.path.abspath(__file__))


def _install(_: ModuleType) -> None:
    import holdfast.torch_compat

    holdfast.torch_compat.install()


def _install_after_torch() -> None:
    # By its file: its package costs time as well.
    path = os.path.join(os.path.dirname(_HERE), "after.py")
    loader = importlib.machinery.SourceFileLoader("holdfast.torch_compat.after", path)
    after = ModuleType(loader.name)
    loader.exec_module(after)
    after.AfterImport("torch", _install)


def _run_hidden() -> None:
    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_install_after_torch()
_run_hidden()
