"""The checker of documents finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import check
from docs.walk import Walk


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a](there.md)", []),
        ("[a](there.md#two-words) ![b](there.md)", []),
        ("[a](https://example.org/nowhere)", []),
        ("`[a](gone.md)`\n```\n[a](gone.md)\n```\n", []),
        ("[a](gone.md)", ["link to gone.md: there is no such file"]),
        ("[a](there.md#three)", ["link to there.md#three: there is no such heading"]),
    ],
)
def test_links(tmp_path: Path, text: str, found: list[str]) -> None:
    (tmp_path / "there.md").write_text("# One\n\n## `Two` words\n", encoding="utf-8")
    assert list(check.broken_links(tmp_path / "here.md", text)) == found


def test_names_in_a_table_of_places(tmp_path: Path) -> None:
    (tmp_path / "there.py").write_text("class A:\n    def b(self): ...\n\ndef c(): ...\n")
    row = "| where | [there](there.py) | `A.b`, `c`, {} |\n"
    page = tmp_path / "here.md"
    assert list(check.unknown_names(page, row.format("`A`"))) == []
    assert list(check.unknown_names(page, row.format("`b`"))) == ["there.py: does not define b"]
    assert len(list(check.unknown_names(page, row.replace("there.py", "gone.py")))) == 2


def test_anchors_of_the_same_page(tmp_path: Path) -> None:
    page = tmp_path / "here.md"
    page.write_text("# One\n", encoding="utf-8")
    assert list(check.broken_links(page, "[a](#one)")) == []
    assert len(list(check.broken_links(page, "[a](#two)"))) == 1


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("# One\n", True),
        ("# One\n```\n# no title\n```\n", True),
        ("One\n", False),
        ("\n# One\n", False),
        ("# One\n\n# Two\n", False),
    ],
)
def test_titles(text: str, right: bool) -> None:
    assert (list(check.wrong_titles(text)) == []) is right


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ("```console\n$ make test ARGS=-x  # all\nmake of it what you can\n```\n", 0),
        ("```console\n$ make demo test SEEDS=3\nsome output\n```\n", 0),
        ("```console\n$ make tests\n```\n", 1),
        ("```sh\npython docs/check.py --write\n```\n", 0),
        ("```sh\npython docs/czech.py\n```\n", 1),
        ("```python\nmake = 1\n```\n", 0),
    ],
)
def test_commands(block: str, found: int) -> None:
    assert len(list(check.unknown_commands(block, check.make_targets()))) == found


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with nothing in it yet."""
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "SOURCE", tmp_path / "src")
    (tmp_path / "src" / "holdfast" / "store").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "store").mkdir(parents=True)
    return tmp_path


def test_guarantees_are_read_with_their_continuations(tree: Path) -> None:
    module = tree / "src" / "holdfast" / "module.py"
    (tree / "tests" / "t.py").write_text("import holdfast.module\n")
    module.write_text(
        '"""A machine.\n\nGuarantees\n    XX-1  One thing,\n          and more of it.\n'
        '    XX-2  Another.\n    X3  A third.\n    XX-10 A tenth.\n\nText.\n"""\n',
        encoding="utf-8",
    )
    assert check.guarantees(module, {"XX-2": ["tests/t.py"]}) == [
        check.Guarantee("XX-1", "One thing, and more of it.", ()),
        check.Guarantee("XX-2", "Another.", ("tests/t.py",)),
        check.Guarantee("X3", "A third.", ()),
        check.Guarantee("XX-10", "A tenth.", ()),
    ]
    cited = {number: ["tests/t.py"] for number in ("XX-2", "X3", "XX-10")}
    assert list(check.uncited([module], cited)) == ["module.py: no test cites XX-1"]


@pytest.mark.parametrize(
    ("test", "text", "found"),
    [
        ("tests/unit/store/test_module.py", "", 0),
        ("tests/test_other.py", "from holdfast.store.module import name\n", 0),
        ("tests/test_other.py", "from holdfast.store import module\n", 0),
        ("tests/test_other.py", "from tests.helper import name\n", 0),
        ("tests/test_other.py", "from holdfast.store.modules import name\n", 1),
        ("tests/story.txt", "import holdfast.store.module\n", 1),
    ],
)
def test_a_test_that_cites_a_guarantee_imports_its_module(
    tree: Path, test: str, text: str, found: int
) -> None:
    module = tree / "src" / "holdfast" / "store" / "module.py"
    module.write_text('"""A machine.\n\nGuarantees\n    XX-1  One thing.\n"""\n')
    (tree / "tests" / "helper.py").write_text("import holdfast.store.module\n")
    (tree / test).write_text(text)
    check.imported.cache_clear()
    assert len(list(check.uncited([module], {"XX-1": [test]}))) == found


def test_every_guarantee_has_a_number_of_its_own() -> None:
    numbers = [
        guarantee.number for path in check.modules() for guarantee in check.guarantees(path, {})
    ]
    assert len(numbers) > 10
    assert sorted(numbers) == sorted(set(numbers))


def test_a_walk_counts_returns_to_a_file_for_each_thread() -> None:
    walk = Walk("call")
    walk.steps = [
        *((1, "a", "f"), (1, "a", "g"), (2, "b", "f"), (1, "b", "h")),
        *((2, "b", "g"), (1, "a", "f"), (1, "c", "f")),
    ]
    assert walk.files == ["a", "b", "a", "c", "b"]
    assert str(walk) == "| call | 7 | 3 | 2 | 2 |"
