"""What runs first in a worker's process: it makes the process ours, then becomes the program.

    HOLDFAST_WORKER=<order> python -u worker.py SCRIPT [ARGUMENT ...]

A list of processes shows the user's program and its arguments. What to do comes as an order in one
variable, which is removed at once. The process is tied to its parent's life, enters its control
group, and handles signals as a fresh Python does. Then a script or module runs in this interpreter
as under plain `python -u`, and ends as Python ends it; a program takes the process over; a function
is called, what it returns is left in a file, and the process ends by `work_until_end`. An exception
that ends any of them is left in the error file, unless the program wrote its own. The fields of an
order are described in orders.py.

Nothing here may import holdfast, nor a module where `_signal` and `_ctypes` will do: every worker
pays for it. Forked workers begin in forked.py and share the rest.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys
import time

TYPE_CHECKING = False  # the real one would cost the import of typing
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Any, NoReturn

SCRIPT = os.path.join(os.path.dirname(__file__), "worker.py")
ORDER = "HOLDFAST_WORKER"
ERROR_FILE, STACK_FILE, RESULT_FILE = "error.json", "stack.txt", "result.pickle"
STACK_SIGNAL = 61  # asks for the stacks of all threads; no library is known to use it

_PR_SET_PDEATHSIG = 1
# Ignored on purpose: by Python itself, or by the user (nohup).
_MAY_BE_IGNORED = (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGHUP)
# What a reader keeps, in characters: with each of them escaped it is still an error file.
_MESSAGE_MAX = 16 * 1024
_TRACEBACK_MAX = 128 * 1024
_DESCRIPTORS_MAX = 250  # the system allows 253 in one message


def read_order(text: str) -> dict[str, str]:
    """Take the fields out of what `orders.write_order` made."""
    lines = (line.encode().decode("unicode_escape") for line in text.split("\n") if line)
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


# Making the process ours.


def tie_to(parent: int) -> None:
    """Die when the parent dies, even if it did just now."""
    if sys.platform == "linux":
        # Where Python is built without it, the reaper does it, a little later.
        call_native("prctl", _PR_SET_PDEATHSIG, _signal.SIGKILL)
    # A process that leads no session was started by a wrapper of the interpreter, and dies with it.
    if os.getppid() != parent and os.getsid(0) == os.getpid():
        os.kill(os.getpid(), _signal.SIGKILL)


def call_native(name: str, *numbers: int) -> int:
    """Call a function of the C library, and return its result; -1 if this Python cannot."""
    try:
        import _ctypes

        function = _ctypes.dlsym(_ctypes.dlopen(None, 0), name)  # type: ignore[arg-type]
        result: int = _ctypes.call_function(function, numbers)
    except (ImportError, OSError):
        return -1
    return result


def reset_signals() -> None:
    """Handle signals as a fresh Python does, whatever the parent handled, ignored or blocked."""
    _signal.set_wakeup_fd(-1)
    for number in _signal.valid_signals():
        handler = _signal.getsignal(number)
        if number == _signal.SIGINT:
            _signal.signal(number, _signal.default_int_handler)
        elif (handler == _signal.SIG_IGN and number not in _MAY_BE_IGNORED) or callable(handler):
            _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def settle(order: Mapping[str, str]) -> None:
    """Go where the worker belongs: its control group, its processors, its file for stacks."""
    _enter(order)
    if "cpus" in order:
        _run_on(int(number) for number in order["cpus"].split(","))
    if "files" in order:
        from resource import RLIMIT_NOFILE, setrlimit

        setrlimit(RLIMIT_NOFILE, tuple(map(int, order["files"].split(","))))  # type: ignore[arg-type]
    if order["kind"] not in ("program", "forker"):  # which have no stack of the user's
        _leave_stacks(os.path.join(order["folder"], STACK_FILE))


def _enter(order: Mapping[str, str]) -> None:
    """Enter the control group of an order, if it has one."""
    if "cgroup" in order:
        try:
            with open(order["cgroup"], "wb", buffering=0) as group:
                group.write(b"0")
        except OSError:
            pass  # other means contain the worker as well


def _leave_stacks(path: str) -> None:
    """Let Python write its stacks to a file: at a native crash, and when STACK_SIGNAL asks."""
    import faulthandler

    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError:
        return  # a full disk: the worker can do without
    if "PYTHONFAULTHANDLER" not in os.environ:  # else the user wants a crash on stderr
        faulthandler.enable(file)
    # What a standby imported may have a use for the signal.
    if sys.platform == "linux" and _signal.getsignal(STACK_SIGNAL) == _signal.SIG_DFL:
        faulthandler.register(STACK_SIGNAL, file)


def _run_on(numbers: Iterable[int]) -> None:
    cpus = set(numbers)
    try:
        for thread in os.listdir("/proc/self/task"):  # what a standby imported may have some
            os.sched_setaffinity(int(thread), cpus)
    except OSError:
        pass  # advice, which a smaller set of processors may forbid


# Running what the worker is for.


def run(order: Mapping[str, str], arguments: list[str]) -> None:
    """Become what the order says; `arguments` begin with the script's, module's or program's."""
    match order["kind"]:
        case "script":
            _run_script(arguments)
        case "module":
            _run_module(arguments)
        case "program":
            _run_program(order["program"], arguments, os.environ)
        case "function":
            _run_function(order)
        case "forker":
            _load("forker_main")["serve"](order, call_native, tie_to, _run_on, _run_program)


def _load(name: str) -> dict[str, Any]:
    """Return what a file beside this one defines: where it runs, there may be no holdfast."""
    from _frozen_importlib_external import SourceFileLoader

    path = os.path.join(os.path.dirname(__file__), f"{name}.py")
    found: dict[str, Any] = {"__name__": name}
    code: Any = SourceFileLoader(name, path).get_code(name)
    exec(code, found)  # noqa: S102  # a file of ours
    return found


def _fresh_main(path: str | None) -> dict[str, Any]:
    """Register a new __main__ that has what Python gives it, and nothing of this file."""
    old = sys.modules["__main__"]
    new = type(sys)("__main__")
    for name, value in vars(old).items():
        if name.startswith("__") and name != "__all__":
            setattr(new, name, {} if name == "__annotations__" else value)
    new.__doc__ = None
    if path is not None:
        new.__file__ = path
        loader: Any = type(old.__loader__)
        new.__loader__ = loader("__main__", path)
    sys.modules["__main__"] = new
    return vars(new)


def first_path(path: str) -> str:
    """Return where Python looks first for what the script imports."""
    return os.path.dirname(os.path.realpath(path))


def _run_script(arguments: list[str]) -> None:
    sys.argv = arguments
    path = arguments[0]
    if not path.startswith("/"):
        path = f"{os.getcwd()}/{path}"
    if _holds_modules(path):
        sys.path.insert(0, path)
        _fresh_main(None)
        _run_as_main("__main__", False)
        return
    if not sys.flags.safe_path:
        sys.path.insert(0, first_path(path))
    if path.endswith(".pyc"):
        from importlib.machinery import SourcelessFileLoader

        code: Any = SourcelessFileLoader("__main__", path).get_code("__main__")
    else:
        import io

        try:
            with io.open_code(path) as file:
                source = file.read()
        except OSError as error:
            sys.stderr.write(f"{sys.executable}: can't open file {path!r}: {error.strerror}\n")
            sys.exit(2)
        code = compile(source, path, "exec", dont_inherit=True)
    exec(code, _fresh_main(path))  # noqa: S102  # a script is there to be run


def _holds_modules(path: str) -> bool:
    """Say whether Python can import from it: a folder or an archive with a __main__.py."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def here() -> list[str]:
    """Return the current folder, from which a module is imported; nothing if it was removed."""
    try:
        return [os.getcwd()]
    except OSError:
        return []


def _run_module(arguments: list[str]) -> None:
    if not sys.flags.safe_path:
        sys.path[:0] = here()
    sys.argv = ["-m", *arguments[1:]]  # until the module's file is known
    _fresh_main(None)
    _run_as_main(arguments[0], True)


def _run_as_main(name: str, alter_argv: bool) -> None:
    """Do what Python does for -m: the very function, so that all is the same."""
    import runpy

    vars(runpy)["_run_module_as_main"](name, alter_argv)


def _run_program(
    program: str | bytes, arguments: list[Any], environment: Mapping[Any, Any]
) -> NoReturn:
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # that Python ignores them is Python's matter
        _signal.signal(number, _signal.SIG_DFL)
    try:
        os.execve(program, arguments, environment)  # noqa: S606
    except OSError as error:
        words = f"holdfast: cannot run {os.fsdecode(program)}: {error.strerror}\n"
        os.write(2, os.fsencode(words))
        os._exit(126)  # a shell's word for it


def run_payload(order: Mapping[str, str]) -> None:
    """Load the function as multiprocessing does, and call it."""
    import pickle
    from multiprocessing import process, spawn

    if order["inherited"]:
        from multiprocessing import forkserver

        numbers = [int(number) for number in order["inherited"].split(",")]
        vars(forkserver)["_forkserver"]._inherited_fds = numbers
    this = process.current_process()
    with open(int(order["payload"]), "rb") as payload:
        vars(this)["_inheriting"] = True  # so that a program without its main guard is told
        try:
            vars(spawn)["prepare"](pickle.load(payload))  # noqa: S301  # our parent wrote it
            function, args, kwargs = pickle.load(payload)  # noqa: S301
        finally:
            del vars(this)["_inheriting"]
    call(function, args, kwargs, order["folder"])


def call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], folder: str
) -> None:
    """Call the function and leave what it returns in the folder."""
    value = function(*args, **kwargs)
    try:
        data = _pickled(value)
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{name} returned a {kind}, which cannot be pickled: {error}") from None
    _write_file(os.path.join(folder, RESULT_FILE), data)


def _pickled(value: object) -> bytes:
    """Return a value pickled; what pickle refuses, such as a class of a notebook, by value."""
    import pickle

    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as refused:
        try:
            import cloudpickle

            data: bytes = cloudpickle.dumps(value)
        except Exception:
            raise refused from None
        return data


# The end of a function's process.


def work_until_end(work: Callable[[], None], folder: str) -> int:
    """Work, then wait for threads, run exit functions, flush; return what to `leave` with.

    The interpreter is not finalized, and no native destructor runs: a thread of a native library
    that needed the interpreter meanwhile would be ended inside a destructor of its own, which
    aborts the process.
    """
    import atexit
    import threading

    code = 0
    try:
        work()
    except SystemExit as error:
        leave_error(error, folder)
        if isinstance(error.code, int):
            code = error.code & 0xFF
        elif error.code is not None:
            sys.stderr.write(f"{error.code}\n")
            code = 1
    except BaseException as error:
        leave_error(error, folder)
        code = -_signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        stack = theirs(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(stack), stack)
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return code


def leave(code: int) -> NoReturn:
    """End the process at once: with this exit code, or by the signal whose negative it is."""
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _run_function(order: Mapping[str, str]) -> NoReturn:
    code = 1
    try:
        code = work_until_end(lambda: run_payload(order), order["folder"])
        call_native("fflush", 0)  # what native code has printed
    finally:
        leave(code)


def theirs(traceback: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that is not ours: it begins in the user's code."""
    here = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")  # all of process/
    while traceback and traceback.tb_frame.f_code.co_filename.startswith(here):
        traceback = traceback.tb_next
    return traceback


def leave_error(error: BaseException, folder: str) -> None:
    """Write the error file, in torchrun's format, unless there is one; never raise."""
    path = os.path.join(folder, ERROR_FILE)
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return
    if os.path.lexists(path):  # the program knew more
        return
    now = time.time()
    try:
        import json
        import traceback

        kind = type(error)
        lines = traceback.format_exception(kind, error, theirs(error.__traceback__))
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        rank = os.environ.get("RANK", "")
        extra = {
            "py_callstack": _clip("".join(lines), _TRACEBACK_MAX),
            "timestamp": str(int(now)),
            "moment": now,
            "type": f"{module}{kind.__qualname__}",
            "host": os.uname().nodename,
            "rank": int(rank) if rank.isdecimal() else None,
        }
        message = _clip(f"{kind.__name__}: {error}", _MESSAGE_MAX)
        content = {"message": {"message": message, "extraInfo": extra}}
        data = json.dumps(content, ensure_ascii=False)
        _write_file(path, data.encode("utf-8", "backslashreplace"))  # how JSON writes half of one
    except Exception as trouble:
        try:
            sys.stderr.write(f"holdfast: cannot write the error file {path}: {trouble}\n")
        except Exception:  # noqa: S110  # stderr is gone as well; the exit code still tells
            pass


def _clip(text: str, most: int) -> str:
    """Return at most so many characters of a text: where it is longer, its begin and its end."""
    if len(text) <= most:
        return text
    mark = "\n[… here something is left out …]\n"
    head = most // 4
    return f"{text[:head]}{mark}{text[len(text) - (most - head - len(mark)) :]}"


def _write_file(path: str, data: bytes) -> None:
    """Write the whole file or none, readable by its owner only."""
    part = f"{path}.{os.getpid()}"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        os.rename(part, path)
    except BaseException:
        try:
            os.unlink(part)
        except OSError:
            pass  # it was never made
        raise


# An order to a process that waits for it.


def receive_order(orders: socket.socket) -> tuple[dict[str, str], dict[str, str], list[int]] | None:
    """Wait for an order: what to be, the environment, the descriptors. None if none will come."""
    import socket

    close_on_exec = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    data, descriptors, _, _ = socket.recv_fds(orders, 1, _DESCRIPTORS_MAX, close_on_exec)
    if not data:
        return None
    with open(descriptors[0], "rb") as file:
        file.seek(0)
        order = read_order(file.read().decode())
    return order, read_order(order.pop("environment")), descriptors[1:]


def main() -> None:
    """Run in a fresh interpreter; its own end is Python's to handle."""
    order = read_order(os.environ.pop(ORDER))
    if not sys.flags.safe_path:
        del sys.path[0]  # where this file lies
    try:
        tie_to(int(order["parent"]))
        reset_signals()  # SIGINT is blocked until now
        if order["kind"] == "standby":
            _enter(order)  # now: it may take the kernel longer than all the rest of a warm start
            order = _load("standby_main")["stand_by"](order, receive_order, tie_to, _load)
        settle(order)
    except KeyboardInterrupt:  # nothing of the user's has begun: no traceback of ours
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
    try:
        run(order, sys.argv[1:])
    except BaseException as error:
        leave_error(error, order["folder"])
        stack = theirs(error.__traceback__)
        hook = sys.excepthook

        def show(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
            hook(kind, error.with_traceback(stack), stack)

        sys.excepthook = show
        raise


if __name__ == "__main__":
    main()
