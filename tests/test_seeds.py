"""The page that says which of our tests stands for which of torch's is complete and true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "seeds.md"
E2E = Path("tests/e2e")
BY_TORCHS_NAMES = ("The launcher", "The agent")
"""What is tested twice: a third column says where in tests/e2e/torch_compat."""
NUMBERS = {
    "The launcher": 13,
    "The agent": 62,
    "RPC under faults": 20,
    "The fixture of those tests": 12,
    "The base of an RPC agent": 27,
}
"""How many tests torch has for each; of the last two, which are no tests, what they do."""

_ROW = re.compile(r"^\| `([^|]*) \| (.*) \|$", re.MULTILINE)
_OURS = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def rows() -> dict[str, list[tuple[str, str]]]:
    """Read the tables: by section, the names on the left, each alone, and what is on the right."""
    sections = re.split(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {
        title: [
            (name, ours)
            for names, ours in _ROW.findall(text)
            for name in expand(names.removesuffix("`"))
        ]
        for title, text in zip(sections[::2], sections[1::2], strict=True)
    }


def expand(names: str) -> list[str]:
    """Return `a_{x,y}` as a_x and a_y."""
    head, _, rest = names.partition("{")
    return [head + tail for tail in rest.rstrip("}").split(",")] if rest else [head]


def columns() -> list[str]:
    return [text for table in rows().values() for _, text in table]


def found(text: str) -> list[tuple[str, str]]:
    return _OURS.findall(text)


def functions_of(path: Path) -> dict[str, set[str]]:
    """Return the functions of a file, and the plain names that each is decorated with."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.name: {one.id for one in node.decorator_list if isinstance(one, ast.Name)}
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }


def test_every_test_of_torch_is_there_once() -> None:
    found = {title: [name for name, _ in table] for title, table in rows().items()}
    assert {title: len(set(names)) for title, names in found.items()} == NUMBERS
    assert {title: len(names) for title, names in found.items()} == NUMBERS


def test_every_test_of_torch_has_one_of_ours() -> None:
    table = [row for found in rows().values() for row in found]
    assert [name for name, ours in table if not _OURS.search(ours)] == []


def test_every_test_of_ours_exists() -> None:
    missing, named = [], set()
    for text in columns():
        ours, _, by_torchs_names = text.partition(" | ")
        named |= {
            *((E2E / file if "/" not in file else Path(file), test) for file, test in found(ours)),
            *((E2E / "torch_compat" / file, test) for file, test in found(by_torchs_names)),
        }
    for path, test in sorted(named):
        if not (ROOT / path).is_file() or test not in functions_of(path):
            missing.append(f"{path}::{test}")
    assert missing == []
    assert len(named) > 60


def test_every_test_of_the_launcher_and_the_agent_has_one_by_torchs_names() -> None:
    """One that runs over the backend of torch's."""
    missing = []
    for title in BY_TORCHS_NAMES:
        for name, text in rows()[title]:
            _, _, by_torchs_names = text.partition(" | ")
            over_all = [
                test
                for file, test in found(by_torchs_names)
                if "C10D" not in functions_of(E2E / "torch_compat" / file)[test]
            ]
            if not (over_all if "_etcd" in name else found(by_torchs_names)):
                missing.append(name)
    assert missing == []
