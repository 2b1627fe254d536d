"""Check the documents: every link leads somewhere, every command exists, every promise is listed.

Run by `make docs`. Reads every Markdown file of the repository and says, one line for each
problem, where a document has lost touch with the source:

    links       a relative link or an image leads to a file, and #anchor to a heading, that exists
    titles      a document has one title, and it comes first
    commands    `make x` and `python path/x.py` in a console block name a target, a file, we have
    names       a row `| what | link to a source file | names in it |` of a table names classes and
                functions that the file defines
    guarantees  docs/guarantees.md says what the docstrings of the source promise by number
                (KS-1, K4 ...), and which tests cite it; `--write` makes it say so. A test that
                imports the module is among them, or the module's own unit test
    changes     fragments in changelog.d/ are called <name>.<kind>.md
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
GUARANTEES = ROOT / "docs" / "guarantees.md"
INTRODUCTION = """\
# Guarantees

What each part promises, by number. A promise stands in the docstring of the module that keeps
it; tests cite it by its number. This page is written by `make docs` from both: do not edit it.
"""
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
# `| what | [a file](file.py) | `names` in it |`
_PLACE = re.compile(r"^\|[^|\n]*\| *\[[^\]]*\]\(([^)\s]+\.py)\) *\|([^|\n]*)\|$", re.MULTILINE)
_NUMBER = re.compile(r"\b([A-Z]{1,2}(?:-\d+|\d))\b")
# `def test_ks1_the_rest_of_the_name`
_NAMED = re.compile(r"^ *(?:async )?def test_([a-z]{2})(\d+)_", re.MULTILINE)
# `    KS-1  A promise, which may go on`, then lines that are indented further.
_GUARANTEE = re.compile(r"^ {4}([A-Z]{1,2}(?:-\d+|\d)) +(\S.*(?:\n {6,}\S.*)*)", re.MULTILINE)


def documents() -> list[Path]:
    """Find every Markdown file of ours."""
    tops = [path for path in ROOT.glob("*.md") if path.is_file()]
    folders = ("changelog.d", "docs", "examples")
    return sorted([*tops, *(path for one in folders for path in ROOT.glob(f"{one}/**/*.md"))])


def anchor(heading: str) -> str:
    """Return the anchor that a heading gets: lower case, spaces to dashes, no punctuation."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def without_code(text: str) -> str:
    """Drop code, in which brackets are no links and `#` is no heading."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def broken_links(path: Path, text: str) -> Iterator[str]:
    """Yield a line for each link that leads nowhere. Links to other sites are not followed."""
    for target in _LINK.findall(without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            yield f"link to {target}: there is no such file"
        elif fragment and file.suffix == ".md":
            headings = _HEADING.findall(_FENCE.sub("", file.read_text(encoding="utf-8")))
            if fragment not in map(anchor, headings):
                yield f"link to {target}: there is no such heading"


def wrong_titles(text: str) -> Iterator[str]:
    """Yield a line unless the document begins with a title and has no other."""
    titles = re.findall(r"^# .+$", _FENCE.sub("", text), re.MULTILINE)
    if len(titles) != 1 or not text.startswith("# "):
        yield f"has {len(titles)} titles: one is right, on the first line"


def unknown_commands(text: str, targets: set[str]) -> Iterator[str]:
    """Yield a line for each command in a console block that we do not have."""
    for language, block in _FENCE.findall(text):
        if language not in {"console", "sh", "bash"}:
            continue
        for line in block.splitlines():
            if language == "console" and not line.startswith("$ "):
                continue  # what the command printed
            command = line.removeprefix("$ ").split("#")[0].split()
            if command[:1] == ["make"]:
                words = [word for word in command[1:] if "=" not in word and word[0] != "-"]
                yield from (f"make {word}: no such target" for word in words if word not in targets)
            elif command and re.fullmatch(r"python3?", command[0]):
                files = [word for word in command[1:] if word.endswith(".py")]
                yield from (
                    f"{line}: no such file" for file in files[:1] if not (ROOT / file).is_file()
                )


def unknown_names(path: Path, text: str) -> Iterator[str]:
    """Yield a line for each class or function that a table finds in a file which has none such."""
    for target, cell in _PLACE.findall(text):
        file = (path.parent / target).resolve()
        defined = definitions(file.read_text(encoding="utf-8")) if file.is_file() else set()
        for name in re.findall(r"`([\w.]+)`", cell):
            if name not in defined:
                yield f"{target}: does not define {name}"


def definitions(source: str) -> set[str]:
    """Return the functions, classes and methods that a module defines; methods as `Class.name`."""
    kinds = ast.FunctionDef | ast.ClassDef
    tops = [node for node in ast.parse(source).body if isinstance(node, kinds)]
    inner = {
        f"{top.name}.{node.name}"
        for top in tops
        if isinstance(top, ast.ClassDef)
        for node in top.body
        if isinstance(node, kinds)
    }
    return {top.name for top in tops} | inner


def make_targets() -> set[str]:
    """Read the targets of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):", text, re.MULTILINE))


class Guarantee(NamedTuple):
    """A numbered promise in the docstring of a module."""

    number: str
    promise: str
    tests: tuple[str, ...]


def guarantees(path: Path, cited: dict[str, list[str]]) -> list[Guarantee]:
    """Read the guarantees that a module's docstring promises."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return [
        Guarantee(number, " ".join(promise.split()), tuple(cited.get(number, ())))
        for number, promise in _GUARANTEE.findall(docstring)
    ]


def uncited(paths: list[Path], cited: dict[str, list[str]]) -> Iterator[str]:
    """Yield a line for each guarantee that no test of its module cites."""
    for path in paths:
        for row in guarantees(path, cited):
            if not row.tests:
                yield f"{path.name}: no test cites {row.number}"
            elif not any(is_about(ROOT / test, path) for test in row.tests):
                tests = ", ".join(row.tests)
                yield f"{path.name}: none of the tests that cite {row.number} imports it: {tests}"


def is_about(test: Path, module: Path) -> bool:
    """Say whether a test is the unit test of a module, or imports it, itself or by a helper."""
    inner = module.relative_to(SOURCE / "holdfast")
    if test == ROOT / "tests" / "unit" / inner.with_name(f"test_{inner.name}"):
        return True
    name = ".".join(module.relative_to(SOURCE).with_suffix("").parts)
    return name.removesuffix(".__init__") in imported(test)


@cache
def imported(test: Path) -> frozenset[str]:
    """Return the names that a test imports, and those that the helpers of tests import for it."""
    names: set[str] = set()
    read: set[Path] = set()
    unread = [test] if test.suffix == ".py" else []
    while unread:
        path = unread.pop()
        read.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import():
                    found = {alias.name for alias in node.names}
                case ast.ImportFrom(module=str(package)):
                    found = {package, *(f"{package}.{alias.name}" for alias in node.names)}
                case _:
                    continue
            names |= found
            helpers = (name for name in found if name.startswith(("tests.", "holdfast.testing.")))
            for helper in helpers:
                base = ROOT if helper.startswith("tests.") else SOURCE
                file = base.joinpath(*helper.split(".")).with_suffix(".py")
                if file.is_file() and file not in read:
                    unread.append(file)
    return frozenset(names)


def modules() -> list[Path]:
    """Find the modules that promise something: all but those which check others."""
    testing = SOURCE / "holdfast" / "testing"
    return sorted(p for p in SOURCE.rglob("*.py") if testing not in p.parents)


def citations() -> dict[str, list[str]]:
    """Find which tests, and which checkers that ship, cite which guarantee by its number."""
    cited: dict[str, list[str]] = {}
    for path in sorted([*ROOT.glob("tests/**/*"), *ROOT.glob("src/holdfast/testing/*.py")]):
        if path.suffix in {".py", ".txt"}:
            text = path.read_text(encoding="utf-8")
            named = {f"{prefix.upper()}-{number}" for prefix, number in _NAMED.findall(text)}
            for number in {*_NUMBER.findall(text), *named}:
                cited.setdefault(number, []).append(path.relative_to(ROOT).as_posix())
    return cited


def render_guarantees() -> str:
    """Return docs/guarantees.md as the source and the tests have it now."""
    cited = citations()
    parts = [INTRODUCTION]
    for path in modules():
        rows = guarantees(path, cited)
        if not rows:
            continue
        title = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
        name = path.relative_to(SOURCE / "holdfast").as_posix()
        parts.append(
            f"\n## {name}\n\n{title[0]}\n\n| | Promise | Tests that cite it |\n|---|---|---|\n"
        )
        for row in rows:
            links = ", ".join(f"[{Path(test).stem}](../{test})" for test in row.tests)
            promise = row.promise.replace("|", "\\|")
            parts.append(f"| {row.number} | {promise} | {links} |\n")
    return "".join(parts)


def problems() -> Iterator[str]:
    """Yield every problem of every document, with its place."""
    targets = make_targets()
    for path in documents():
        text = path.read_text(encoding="utf-8")
        found = [*broken_links(path, text), *unknown_commands(text, targets)]
        found += unknown_names(path, text)
        if path.parent.name != "changelog.d":
            found += wrong_titles(text)
        if path == GUARANTEES and text != render_guarantees():
            found.append("behind the source: run `make docs`")
        yield from (f"{path.relative_to(ROOT)}: {problem}" for problem in found)
    yield from uncited(modules(), citations())
    for path in sorted((ROOT / "changelog.d").iterdir()):
        named = re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md", path.name)
        if not named and path.name != "README.md":
            yield f"changelog.d/{path.name}: must be <name>.<kind>.md, kind one of {KINDS}"


def main() -> int:
    """Print the problems and return how the process shall exit."""
    if sys.argv[1:] == ["--write"]:
        GUARANTEES.write_text(render_guarantees(), encoding="utf-8")
    found = list(problems())
    for problem in found:
        print(problem)
    print(f"docs: {len(documents())} documents, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
