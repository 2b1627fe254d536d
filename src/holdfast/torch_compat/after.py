"""Acts after a module has been imported, by any importer.

It needs nothing of holdfast: interpreters that start use it too (`site/sitecustomize.py`).

Guarantees
    AF-1  It is done each time that the module has been run, before any code can use it; also if
          the program has asked before whether the module is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["AfterImport"]


class AfterImport:
    """Finds one module as others do, and lets `act` follow when it has been run.

    It stays in `sys.meta_path`: to take it out would disturb a thread that walks there.
    """

    def __init__(self, name: str, act: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._act = act
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what those after us find."""
        if name != self._name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return self._followed(spec)
        return None

    def _followed(self, spec: ModuleSpec) -> ModuleSpec:
        loader = spec.loader
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._act(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
