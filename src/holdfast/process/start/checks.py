"""What can be known to be wrong with an entry point before anything runs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import assert_never

from holdfast.errors import UsageError
from holdfast.process.spec import Entrypoint, Function, Module, Program, Script
from holdfast.process.start import child

__all__ = ["check_entrypoint", "find_interpreter", "find_program"]

# What a package's code has in it that changes where its modules are found.
_FINDING = (b"__path__", b"modules", b"meta_path", b"path_hooks", b"__import__")


def check_entrypoint(entrypoint: Entrypoint, environment: Mapping[str, str]) -> None:
    """Raise UsageError if what should run is not there; said before anything is started."""
    match entrypoint:
        case Script(path, _, python):
            _check_script(path)
            find_interpreter(python)
        case Module(name, _, python):
            find_interpreter(python)
            if not python:
                _check_module(name, environment.get("PYTHONPATH", ""))
        case Program(path):
            find_program(path, environment)
        case Function():
            pass  # it is in our hands
        case _:
            assert_never(entrypoint)


def _check_script(path: str) -> None:
    if not os.path.exists(path):
        raise UsageError(f"script {path!r}: no such file ({_where()})")
    if not os.access(path, os.R_OK):
        raise UsageError(f"script {path!r}: it may not be read")
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "__main__.py")):
        raise UsageError(f"script {path!r}: is a folder, and has no __main__.py")


def _where() -> str:
    return f"the folder is {''.join(child.here()) or 'removed'}"


def _check_module(name: str, python_path: str) -> None:
    """Look for a module without running any code of the packages that it is in.

    A package whose code may say itself where its modules are is not checked.
    """
    package, *parts = name.split(".")
    spec = _find_outermost(name, python_path)
    for part in [*parts, "__main__"]:
        if spec is None or _finds_its_own(spec):
            return
        if spec.submodule_search_locations is None and part == "__main__":
            return  # it is no package: this is what runs
        package = f"{package}.{part}"
        try:
            spec = _find_spec(package, list(spec.submodule_search_locations or ()))
        except Exception:  # in a foreign finder: the worker will meet the error itself
            return
        if spec is None:
            no_main = part == "__main__" and "it is a package, and has no __main__"
            raise UsageError(
                f"module {name!r}: {no_main or f'no module named {package!r}'} ({_where()})"
            )


def _find_outermost(name: str, python_path: str) -> ModuleSpec | None:
    """Return what is found of the outermost package; None if it was made by hand, in here."""
    top = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:
        return None
    if spec is None:
        places = [*child.here(), *filter(None, python_path.split(os.pathsep))]
        spec = PathFinder.find_spec(top, places)
    if spec is None:
        raise UsageError(f"module {name!r}: no module named {top!r} ({_where()})")
    return spec


def _find_spec(name: str, places: list[str]) -> ModuleSpec | None:
    """Ask every finder, as an import would after that of the package."""
    specs = (finder.find_spec(name, places, None) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def _finds_its_own(package: ModuleSpec) -> bool:
    """Say whether a package may have modules that are not found in its folders."""
    if package.origin is None:
        return False  # no code: a folder
    try:
        code = Path(package.origin).read_bytes()
    except OSError:  # in an archive, or no file at all
        return True
    return not package.origin.endswith(".py") or any(word in code for word in _FINDING)


def find_interpreter(python: str) -> str:
    """Return the path of an interpreter; ours if none is named. UsageError if it is not there."""
    if not python:
        return sys.executable
    found = shutil.which(python)
    if found is None:
        raise UsageError(f"python {python!r}: not found, or not executable")
    return found


def find_program(path: str, environment: Mapping[str, str]) -> str:
    """Return where a worker with this environment finds a program. UsageError if it does not."""
    places = environment.get("PATH", os.defpath)
    found = shutil.which(path, path=places)
    if found is not None:
        return os.path.abspath(found)
    if os.path.dirname(path):
        why = "it is not executable" if os.path.exists(path) else "no such file"
    else:
        why = f"not found in PATH ({places})"
    raise UsageError(f"program {path!r}: {why}")
