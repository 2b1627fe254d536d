"""What the documents show happens: their Python runs, their commands print what they say."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from docs import check
from holdfast.cli import exits
from holdfast.launch.config import LaunchConfig

DOCS = check.ROOT / "docs"
DEFAULT_PORT = 29400
LIMIT_S = 200


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has never used holdfast."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    clean.pop("XDG_STATE_HOME", None)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**clean, "HOME": str(tmp_path), "PATH": path, "PYTHONUTF8": "1"}


def blocks(page: Path, language: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for each block of code in a language."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, found.start(1)), found[1]


def pages_with(language: str) -> list[Path]:
    return [page for page in check.documents() if any(blocks(page, language))]


@pytest.mark.parametrize("page", pages_with("python"), ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    program = ""
    for line, text in blocks(page, "python"):
        program += "\n" * (line - program.count("\n")) + text  # errors name the page's own lines
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        check=False,
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_guide_to_stores_has_examples() -> None:
    assert len(list(blocks(DOCS / "stores.md", "python"))) > 10


class Shown(NamedTuple):
    """A command in a console block, and what the page says it prints."""

    command: str
    output: str


def shown_in(block: str) -> list[Shown]:
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    assert parts[0] == ""
    return [Shown(*pair) for pair in zip(parts[1::2], parts[2::2], strict=True)]


def printed_by(commands: list[str], variables: dict[str, str]) -> list[str]:
    """Run commands one after the other in one shell; return what each one prints."""
    mark = "=-=-="
    script = "".join(f'{command}\n_code=$?; echo "{mark}"; (exit $_code)\n' for command in commands)
    done = subprocess.run(
        ["bash", "-c", script],
        check=False,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    return done.stdout.split(f"{mark}\n")[:-1]


def comparable(text: str) -> str:
    return re.sub(r"\d+\.\d ms", "_ ms", text)


def test_the_commands_print_what_the_page_says(variables: dict[str, str]) -> None:
    """One server for the whole page, on a free port that is shown as the default one."""
    server = subprocess.Popen(
        ["holdfast", "store", "serve", "tcp://127.0.0.1:0"],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            port = line.strip().rpartition(":")[2]
            variables["HOLDFAST_STORE"] = f"tcp://127.0.0.1:{port}"
            for _, block in blocks(DOCS / "cli.md", "console"):
                shown = shown_in(block)
                if shown[0].command == "holdfast store serve":
                    assert shown[0].output == line.replace(port, str(DEFAULT_PORT))
                    continue
                if "--join" in shown[0].command:  # e2e/test_replicated_store.py runs it
                    continue
                commands = [each.command.replace(str(DEFAULT_PORT), port) for each in shown]
                printed = printed_by(commands, variables)
                real = [
                    Shown(each.command, comparable(text.replace(port, str(DEFAULT_PORT))))
                    for each, text in zip(shown, printed, strict=True)
                ]
                assert real == [Shown(each.command, comparable(each.output)) for each in shown]
        finally:
            server.terminate()
    assert server.returncode == 0


def test_the_page_lists_the_exit_codes() -> None:
    told = re.findall(r"^    (\d+) +(.+)$", exits.__doc__ or "", re.MULTILINE)
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert rows == told


def test_the_page_lists_what_a_launch_configuration_has() -> None:
    told = []
    for field in dataclasses.fields(LaunchConfig):
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        if field.default_factory is not dataclasses.MISSING:
            made = field.default_factory()
            default = "`{}`" if made == {} else f"`{type(made).__name__}()`"
        told.append((field.name, default.replace("'", '"')))
    page = (DOCS / "jobs.md").read_text(encoding="utf-8")
    table = page.partition("| Field | Default | Meaning |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| ", table, re.MULTILINE)
    assert rows == told
