"""The files and scripts that a page of docs/clusters shows, to be run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"^```(?:sh|py|text)\n(#![^\n]*\n)?# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def files(page: str) -> dict[str, str]:
    """Return the files of a page by their names, which are in their first comment."""
    text = (ROOT / "docs" / "clusters" / f"{page}.md").read_text(encoding="utf-8")
    return {name: f"{first}# {name}\n{rest}" for first, name, rest in _BLOCK.findall(text)}


def scripts(page: str) -> list[str]:
    """Return the names of those that are run by a shell."""
    return [name for name in files(page) if name.endswith(".sh")]


def write(page: str, folder: Path) -> None:
    """Write them into a folder, as a reader of the page does."""
    for name, text in files(page).items():
        (folder / name).write_text(text, encoding="utf-8")
