"""The rules of the source, as tests: what a reviewer should never have to say twice."""

from __future__ import annotations

import ast
import functools
import importlib
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "holdfast"
UNIT = ROOT / "tests" / "unit"

# Size. A comment that speaks to a tool does not count as part of its line.

MODULE_LINES_MAX = {"src": 500, "tests": 700, "bench": 500, "examples": 500, "docs": 500}
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100

# Purity. The list of pure files is in pyproject.toml, [tool.coverage.report].

ACTING_MODULES = (
    *("asyncio", "concurrent", "http", "logging", "multiprocessing", "os", "resource"),
    *("select", "selectors", "shutil", "signal", "socket", "socketserver", "ssl", "subprocess"),
    *("tempfile", "threading", "time", "torch", "urllib.request", "_thread"),
)
# Files that import nothing which acts, and are not pure all the same.
ACTS_THROUGH_OTHERS: dict[str, str] = {
    "store/store.py": "acts through the backend that implements it",
    "store/prefix.py": "acts through the store that it wraps",
    "store/gather.py": "acts through the store that it is given",
    "net/transport.py": "a protocol: it says what others do",
    "process/outcome/memory.py": "reads files, by their paths",
    "process/start/worker.py": "runs child.py",
    "rpc/values/funcref.py": "looks for functions in the modules that are loaded, and loads them",
    "rpc/wire/memory.py": "maps memory of this process, and writes to new objects",
    "torch_compat/after.py": "changes how a module is imported",
}

# Banned names: what to use instead, and the files that may. process/start/child.py and forked.py
# run in a worker: they set the environment, and nothing of holdfast is there to be used instead.

BANNED: dict[str, tuple[str, tuple[str, ...]]] = {
    "time": (
        "use holdfast.clock",
        ("clock.py", "process/start/child.py", "process/stop/fence_main.py"),
    ),
    "datetime.datetime.now": ("use holdfast.clock", ()),
    "os.environ": (
        "use holdfast.env",
        (
            *("env.py", "process/start/child.py", "process/start/forked.py"),
            "process/start/standby_main.py",
        ),
    ),
    "os.getenv": ("use holdfast.env", ()),
    "os.putenv": ("give the child its environment", ()),
    "os.system": ("use subprocess, without a shell", ()),
    "print": ("return it, log it, or emit an event", ("cli/",)),
    "input": ("take it as an argument", ("cli/",)),
    "eval": ("parse it", ()),
    # A worker's script is there to be run; a record's __init__ is made of the names of its fields.
    "exec": ("import it", ("process/start/child.py", "process/start/worker.py", "records.py")),
    # A worker calls the user's function and tells what it returned, as multiprocessing does; so do
    # calls between workers, which have proved to each other that they are of one job.
    "pickle": (
        "use store.wire, or JSON",
        ("process/start/child.py", "process/start/returns.py", "rpc/values/"),
    ),
    "marshal": ("use store.wire, or JSON", ()),
    "shelve": ("use store.wire, or JSON", ()),
    "logging.basicConfig": ("leave logging to the program", ("cli/",)),
    # Tensors are sent from where they lie, if torch is there, and its random numbers are seeded
    # anew after a fork; it is never imported for that.
    "torch": (
        "no file of the core knows torch",
        ("torch_compat/", "rpc/values/pickling.py", "process/start/forkable.py"),
    ),
    "numpy": ("no file of the core knows numpy", ("torch_compat/",)),
}
# Functions of a module that keep hidden, shared, unseeded state; random.Random(seed) is fine.
RANDOM_ALLOWED = frozenset({"random.Random", "random.SystemRandom", "random.getstate"})

# Tests that wait for time to pass, and why each may.

MAY_SLEEP: dict[str, str] = {
    "tests/waiting.py": "is how tests wait",
    "tests/unit/test_clock.py": "tests the clock",
    "tests/unit/testing/test_clock.py": "tests the clock that a test moves",
    "tests/unit/testing/test_rpcworld.py": "a call that does not return in the time of the test",
}
# Lets the other tasks of an event loop run.
YIELDING = ("asyncio.sleep", "0")

TO_A_TOOL = re.compile(r"  # (type: ignore|noqa|pragma).*$")
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK|WIP)\b")
VAGUE_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "misc", "base"})

# Class names that occur more than once in the product, and why each of them may.

_OF_TORCHS_WIRE = "an operation of torch's store protocol has the name that torch gives it"
SAME_CLASS_NAMES: dict[str, str] = {
    **dict.fromkeys(("Add", "Append", "CompareSet", "Delete", "Get"), _OF_TORCHS_WIRE),
    **dict.fromkeys(("MultiGet", "MultiSet", "Ping", "Set", "Wait"), _OF_TORCHS_WIRE),
    "_Here": "what a thread knows: a private class of its file, as its name is",
    "_Parts": "what an object is made of: a private class of its file, as its name is",
}

# Folders with programs that are not packages.

NO_PACKAGES = {"torch_compat/site": "is put on the path of interpreters that start"}

# Files that are run by path and offer nothing to import.

SCRIPTS: dict[str, str] = {
    "store/etcd/guard.py": "watches over one command; it must start within milliseconds",
    "process/start/child.py": "what runs in a worker before anything of holdfast can be imported",
    "process/start/worker.py": "the first lines of a worker: they run child.py",
    "torch_compat/site/sitecustomize.py": "is run by an interpreter that starts; changes imports",
}

# The mirror of source and tests.

# Modules that another test file tests, because alone they do nothing that is worth a test.
TESTED_BY: dict[str, str] = {
    "__main__.py": "tests/unit/cli/test_main.py",
    "process/start/worker.py": "tests/unit/process/start/test_child.py",
    "process/start/forker_main.py": "tests/unit/process/start/test_forker.py",
    "process/start/standby_main.py": "tests/unit/process/start/test_warm.py",
    "process/start/forkable.py": "tests/unit/process/start/test_standby_parent.py",
    "process/start/standby_parent_main.py": "tests/unit/process/start/test_standby_parent.py",
    "torch_compat/__main__.py": "tests/unit/torch_compat/test_patching.py",
    "torch_compat/site/sitecustomize.py": "tests/unit/torch_compat/test_patching.py",
}

# What `import holdfast` must not pull in: it is paid by every worker of every job.

HEAVY = (
    *("asyncio", "concurrent.futures", "ctypes", "email", "http", "importlib.metadata", "json"),
    *("logging", "multiprocessing", "numpy", "socket", "sqlite3", "ssl", "subprocess", "torch"),
    *("urllib.request", "xml"),
)
# What the launcher must not pull in before it is needed: it stands between a command and workers.
LATER = (
    *(
        "asyncio",
        "concurrent.futures",
        "datetime",
        "email",
        "hashlib",
        "http",
        "importlib.metadata",
    ),
    *("multiprocessing", "pickle", "secrets", "ssl", "urllib.request", "xml"),
    *("holdfast.store.etcd", "holdfast.store.client", "holdfast.store.server"),
    *("holdfast.observe.plain", "holdfast.observe.replay"),
)
# What no pure file may pull in, not even through others.
ACTING_AT_LAST = ("asyncio", "http.client", "multiprocessing", "socket", "ssl", "subprocess")


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def programs() -> list[Path]:
    """Every Python file that is ours."""
    return sorted(path for folder in MODULE_LINES_MAX for path in (ROOT / folder).rglob("*.py"))


@functools.cache
def pure_files() -> frozenset[str]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed: list[str] = config["tool"]["coverage"]["report"]["include"]
    return frozenset(name.removeprefix("src/holdfast/") for name in listed)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for every import, wherever it stands."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if (
                ROOT / "src" / module.replace(".", "/")
            ).is_dir():  # `from holdfast.store import ops`
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) for every name that is imported or used."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, node.func.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)


def within(name: str, banned: str) -> bool:
    return name == banned or name.startswith(f"{banned}.")


def report(problems: list[str]) -> None:
    assert not problems, "\n" + "\n".join(problems)


# Purity.


def acts(path: Path) -> str | None:
    """Say why a file is not pure, or None if nothing shows."""
    for line, module in imports(path):
        if module == "signal" and names_only(path):
            continue
        if any(within(module, acting) for acting in ACTING_MODULES):
            return f"{relative(path)}:{line}: imports {module}"
    return None


def names_only(path: Path) -> bool:
    """Say whether a file takes of `signal` nothing but the names of signals."""
    taken = {name for _, name in names(path) if within(name, "signal")}
    return taken <= {"signal.Signals"}


def test_the_pure_files_exist_and_import_nothing_that_acts() -> None:
    missing = sorted(name for name in pure_files() if not (SOURCE / name).is_file())
    report([f"{name}: listed as pure in pyproject.toml, but not there" for name in missing])
    report([why for name in sorted(pure_files()) if (why := acts(SOURCE / name))])


def test_what_the_pure_files_import_of_ours_is_pure_too() -> None:
    allowed = {"clock.py"}  # for Deadline and the Clock protocol; reading time is banned by name
    problems = []
    for name in sorted(pure_files()):
        for line, module in imports(SOURCE / name):
            if not within(module, "holdfast"):
                continue
            target = module.removeprefix("holdfast").strip(".").replace(".", "/") + ".py"
            if target not in pure_files() | allowed | ACTS_THROUGH_OTHERS.keys():
                problems.append(f"{name}:{line}: imports {module}, which is not pure")
            if target == "clock.py" and re.search(r"\bSYSTEM_CLOCK\b", (SOURCE / name).read_text()):
                problems.append(f"{name}:{line}: uses the system's clock; take `now`")
    report(problems)


def test_every_file_that_could_be_pure_is_listed() -> None:
    problems = []
    for path in sources():
        name = relative(path)
        package = name.partition("/")[0]
        if path.name in {"__init__.py", "__main__.py"} or package in {"testing", "cli"}:
            continue
        ours = [m.removeprefix("holdfast.") for _, m in imports(path) if within(m, "holdfast")]
        targets = {f"{module.replace('.', '/')}.py" for module in ours}
        listed = pure_files() | ACTS_THROUGH_OTHERS.keys()
        if name not in listed and targets <= pure_files() and acts(path) is None:
            problems.append(f"{name}: imports nothing that acts: list it in pyproject.toml")
    report(problems)


def test_importing_every_pure_file_loads_nothing_that_acts() -> None:
    modules = [f"holdfast.{name[:-3].replace('/', '.')}" for name in sorted(pure_files())]
    loaded = loaded_by("; ".join(f"import {module}" for module in modules))
    assert sorted(loaded.intersection(ACTING_AT_LAST)) == []


# Names that must not be used.


def test_banned_names() -> None:
    problems = []
    for path in sources():
        if relative(path).startswith("testing/"):
            continue
        for line, name in names(path):
            for banned, (instead, allowed) in BANNED.items():
                if within(name, banned) and not relative(path).startswith(allowed or "/"):
                    problems.append(f"{relative(path)}:{line}: {name} is banned: {instead}")
    report(problems)


def test_randomness_is_injected() -> None:
    report(
        [
            f"{relative(path)}:{line}: {name} is banned: take a random.Random"
            for path in sources()
            for line, name in names(path)
            if name.startswith("random.") and not name.startswith(tuple(RANDOM_ALLOWED))
        ]
    )


def test_no_shell_is_started() -> None:
    report(
        [
            f"{path.relative_to(ROOT)}:{node.value.lineno}: shell=True is banned: give a list"
            for path in programs()
            for node in ast.walk(tree(path))
            if isinstance(node, ast.keyword) and node.arg == "shell"
        ]
    )


def sleeps(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, code) for every place of a file where a thread waits for nothing but time."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.ImportFrom(module="time" | "asyncio", names=taken):
                yield from ((node.lineno, "import sleep") for one in taken if one.name == "sleep")
            case ast.Call(func=ast.Attribute(attr="sleep") as func, args=args):
                code = ast.unparse(func)
                if code != "super().sleep" and (code, *map(ast.unparse, args)) != YIELDING:
                    yield node.lineno, code
            case ast.Call(func=ast.Attribute(attr="wait", value=ast.Call(func=made)), args=[_, *_]):
                if ast.unparse(made) in ("threading.Event", "Event"):
                    yield node.lineno, "wait of an event that is never set"


def test_no_test_sleeps() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): places
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (places := list(sleeps(path)))
    }
    report(
        [
            f"{name}:{line}: {code} is banned in tests: wait for the event, or by tests.waiting"
            for name, places in found.items()
            if name not in MAY_SLEEP
            for line, code in places
        ]
        + [f"{name}: does not sleep: take it off MAY_SLEEP" for name in MAY_SLEEP.keys() - found]
    )


# Size and shape.


def test_every_file_begins_with_its_docstring_and_modern_annotations() -> None:
    problems = []
    for path in programs():
        if not ast.get_docstring(tree(path)):
            problems.append(f"{path.relative_to(ROOT)}: begin with a docstring")
        body = tree(path).body
        future = "from __future__ import annotations"
        if len(body) > 1 and (ast.unparse(body[1]) != future):
            problems.append(f"{path.relative_to(ROOT)}: after the docstring: {future}")
    report(problems)


def test_modules_functions_and_lines_are_short() -> None:
    problems = []
    for path in programs():
        shown = path.relative_to(ROOT)
        lines = path.read_text(encoding="utf-8").splitlines()
        limit = MODULE_LINES_MAX[shown.parts[0]]
        if len(lines) > limit:
            problems.append(f"{shown}: {len(lines)} lines, at most {limit}: split it")
        for number, line in enumerate(lines, 1):
            columns = len(TO_A_TOOL.sub("", line))
            if columns > COLUMNS_MAX:
                problems.append(f"{shown}:{number}: {columns} columns, at most {COLUMNS_MAX}")
            if LEFTOVERS.search(line) and path != Path(__file__).resolve():
                problems.append(f"{shown}:{number}: {line.strip()!r}: do it, or write an issue")
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    problems.append(f"{shown}:{node.lineno}: {node.name} has {length} lines")
    report(problems)


def test_names_of_files_and_classes_say_something() -> None:
    problems = []
    for path in sources():
        if path.stem in VAGUE_NAMES or path.parent.name in VAGUE_NAMES:
            problems.append(f"{relative(path)}: name it after what it holds")
        problems += [
            f"{relative(path)}:{node.lineno}: {node.name}: say what it does"
            for node in ast.walk(tree(path))
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Manager", "Helper"))
        ]
    report(problems)


def test_a_class_name_occurs_once_in_the_product() -> None:
    places: dict[str, list[str]] = {}
    for path in sources():
        if not relative(path).startswith("testing/"):
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(relative(path))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    report(
        [
            f"class {name}: is in {', '.join(found)}: say what sets them apart"
            for name, found in sorted(twice.items())
            if name not in SAME_CLASS_NAMES
        ]
        + [
            f"class {name}: occurs once: take it off SAME_CLASS_NAMES"
            for name in sorted(SAME_CLASS_NAMES.keys() - twice.keys())
        ]
    )


# Words (CONTRIBUTING.md, "How sentences are written"): what not to write, and what to say.

PERSONS = r"who|whom|whoever|he|his|him|himself|nobody|somebody|everybody|anybody"
BANNED_WORDS: dict[str, str] = {
    PERSONS: "name the thread, the process, the worker or the node",
    r"ambush\w*": "crash at a chosen moment",
    r"clerks?": "task thread, scheduler",
    r"doors?": "server",
    r"eagerness": "spinning",
    r"errands?": "task",
    r"for want of": "out of",
    r"hangs? up on|hung up on": "disconnect",
    r"holdings?": "lease, references",
    r"in vain": "say what does not happen",
    r"insist\w*": "retry, require",
    r"last words?": "last message",
    r"lets? go|letting go|let_go": "release",
    r"make_way|makes? way": "release before blocking",
    r"manners": "behaviour",
    r"murder\w*": "kill",
    r"parcels?": "payload",
    r"patience": "timeout, limit, backoff",
    r"receipts?": "kept replies",
    r"storm\w*": "burst",
    r"strangers?": "unauthenticated client or connection",
    r"visitors?": "client",
}
# Where a word is right: what is taken out of a text before it is judged.
RIGHT_WORDS: dict[str, str] = {
    r"\b(?:person|people|users?) who\b": "a person is who",
    r"\bHE-\d+": "a guarantee's number",
}


def written(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for every comment and docstring; in the source for other texts too."""
    ours = SOURCE in path.parents
    for node in ast.walk(tree(path)):
        match node:
            case ast.Constant(value=str(text)) if ours:
                yield node.lineno, text
            case ast.Expr(value=ast.Constant(value=str(text))) if not ours:
                yield node.lineno, text
    source = io.StringIO(path.read_text(encoding="utf-8"))
    for token in tokenize.generate_tokens(source.readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_sentences_use_plain_words() -> None:
    right = re.compile("|".join(RIGHT_WORDS))
    banned = [
        (re.compile(rf"\b(?:{word})\b", re.IGNORECASE), say) for word, say in BANNED_WORDS.items()
    ]
    report(
        [
            f"{path.relative_to(ROOT)}:{line}: {found.group()!r}: {say}"
            for path in programs()
            for line, text in written(path)
            for pattern, say in banned
            for found in pattern.finditer(right.sub("", text))
        ]
    )


# What a module offers.


def test_all_is_present_and_true() -> None:
    problems = []
    for path in sources():
        name = relative(path)
        if path.name in {"__init__.py", "__main__.py"} or name in SCRIPTS:
            continue
        module = importlib.import_module(f"holdfast.{name[:-3].replace('/', '.')}")
        exported = getattr(module, "__all__", None)
        if exported is None:
            problems.append(f"{name}: has no __all__")
            continue
        problems += [f"{name}: __all__ has {n!r}" for n in exported if not hasattr(module, n)]
        public = {
            node.name
            for node in tree(path).body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
        }
        hooks = {n for n in public if n.startswith("pytest_")}
        fixtures = {
            node.name
            for node in tree(path).body
            if isinstance(node, ast.FunctionDef)
            and any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
        }
        hidden = sorted(public - set(exported) - hooks - fixtures)
        problems += [f"{name}: {n} is public, but not in __all__" for n in hidden]
    report(problems)


def test_every_package_and_each_within_it_opens_with_its_layout() -> None:
    folders = {path.parent for path in sources()}
    problems = [
        f"{relative(folder)}: has no __init__.py with its layout"
        for folder in sorted(folders)
        if not (folder / "__init__.py").is_file() and relative(folder) not in NO_PACKAGES
    ]
    for path in sources():
        if path.name != "__init__.py":
            continue
        text = ast.get_docstring(tree(path)) or ""
        there = {p.parent.name + "/" for p in path.parent.glob("*/__init__.py")}
        there |= {p.name for p in path.parent.glob("*.py") if not p.name.startswith("__")}
        told = set(re.findall(r"^    (\w+(?:\.py|/))", text, re.MULTILINE))
        problems += [f"{relative(path)}: the layout lacks {n}" for n in sorted(there - told)]
        problems += [f"{relative(path)}: the layout has {n}" for n in sorted(told - there)]
    report(problems)


def test_layouts_are_in_reading_order() -> None:
    """A file is listed after the files of its package that it imports when it is loaded."""
    problems = []
    for path in sources():
        if path.name != "__init__.py":
            continue
        listed = re.findall(
            r"^    (\w+)(?:\.py|/)", ast.get_docstring(tree(path)) or "", re.MULTILINE
        )
        for place, name in enumerate(listed):
            for other in loads(path.parent, name).intersection(listed[place + 1 :]):
                problems.append(f"{relative(path)}: {name} needs {other}: list it after that")
    report(problems)


def loads(package: Path, name: str) -> set[str]:
    """Return which files and packages of a package one of them imports at its top."""
    prefix = ".".join(("holdfast", *package.relative_to(SOURCE).parts, ""))
    one = package / f"{name}.py"
    return {
        module.removeprefix(prefix).partition(".")[0]
        for file in ([one] if one.is_file() else (package / name).rglob("*.py"))
        for node in tree(file).body
        if isinstance(node, ast.ImportFrom)
        for module in (node.module or "", *(f"{node.module}.{each.name}" for each in node.names))
        if module.startswith(prefix)
    } - {name}


def test_tests_mirror_the_source() -> None:
    modules = {relative(path) for path in sources() if path.name != "__init__.py"}
    expected = {
        str(Path(name).with_name(f"test_{Path(name).name}")) for name in modules - TESTED_BY.keys()
    }
    found = {path.relative_to(UNIT).as_posix() for path in UNIT.rglob("test_*.py")}
    report(
        [f"tests/unit/{name}: missing" for name in sorted(expected - found)]
        + [f"{name}: missing" for name in TESTED_BY.values() if not (ROOT / name).is_file()]
        + [
            f"tests/unit/{name}: tests no module of src/holdfast"
            for name in sorted(found - expected)
        ]
    )


# What importing costs.


def loaded_by(code: str) -> set[str]:
    """Return the modules that `code` loads beyond those of a bare interpreter."""
    found = []
    for program in ("pass", code):
        # Look before json is imported to tell what was seen.
        text = f"{program}; import sys; loaded = sorted(sys.modules); import json"
        done = subprocess.run(
            [sys.executable, "-c", f"{text}; print(json.dumps(loaded))"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        found.append(set(json.loads(done.stdout)))
    return found[1] - found[0]


def test_import_holdfast_is_light() -> None:
    heavy = {name for name in loaded_by("import holdfast") if any(within(name, h) for h in HEAVY)}
    assert sorted(heavy) == []


def test_the_launcher_imports_what_every_job_needs_and_no_more() -> None:
    code = "import holdfast.cli.run_resolve, holdfast.cli.run_view, holdfast.launch.launcher"
    early = {name for name in loaded_by(code) if any(within(name, late) for late in LATER)}
    assert sorted(early) == []
