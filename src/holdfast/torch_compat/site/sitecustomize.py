"""Is found by children of a process that has installed holdfast.torch_compat: installs it there.

Not at once: torch costs seconds, and most children do not need it. When torch has been imported,
before anybody can use it. A sitecustomize that this one hides is run as well.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType

__all__: list[str] = []

_HERE = os.path.dirname(os.path.abspath(__file__))


class AfterTorch:
    """Finds torch as others do, and lets it be followed by us."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        loader = None if spec is None else spec.loader
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            import holdfast.torch_compat

            holdfast.torch_compat.install()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _run_hidden() -> None:
    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, AfterTorch())
_run_hidden()
