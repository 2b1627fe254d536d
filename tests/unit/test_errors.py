"""One tree of errors, by what must be done; each is also the builtin that people catch."""

from __future__ import annotations

import copy
import pickle
import re
from types import SimpleNamespace

import pytest

from holdfast import errors
from holdfast.errors import (
    CallCancelled,
    CallTimedOut,
    Fenced,
    HoldfastError,
    InternalError,
    LeaseLost,
    Overloaded,
    PeerLost,
    PeerViolation,
    ReferenceFailed,
    Refused,
    RemoteError,
    RendezvousClosed,
    RendezvousLost,
    RendezvousTimedOut,
    RunOver,
    Signalled,
    Step,
    Stopped,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
    TimeoutExpired,
    Unavailable,
    UsageError,
    WorkersFailed,
    WorkersStuck,
    exit_code,
)
from holdfast.process.outcome.failure import Failure
from holdfast.process.spec import Exit


def failure(code: int) -> Failure:
    return Failure(
        rank=3,
        local_rank=1,
        role="trainer",
        host="h",
        pid=7,
        exit=Exit(code),
        at=1.5,
        message="E: m",
        error_data={"message": "E: m"},
    )


EVERY: list[HoldfastError] = [
    HoldfastError("m"),
    UsageError("m"),
    TimeoutExpired("m", waiting_for=("a", "b"), maybe_applied=True),
    RendezvousTimedOut("m", waiting_for=("a",)),
    StoreBusy("m", waiting_for=("a",)),
    RunOver("m", failed=True),
    Unavailable("m", step=Step.TCP, address="h:1"),
    StoreUnavailable("m", step=Step.RESOLVE, address="h:1", maybe_applied=True),
    StoreFull("m", address="h:1", maybe_applied=True),
    RendezvousLost("m", address="h:1", maybe_applied=True),
    LeaseLost("m"),
    CallTimedOut("m", maybe_applied=True, deadline_of="w1"),
    PeerLost("m", peer="w1", incarnation="i"),
    Overloaded("m"),
    RemoteError("m", type_name="x.E", traceback_text="t", worker="w1"),
    CallCancelled("m"),
    ReferenceFailed("m"),
    RendezvousClosed("m", address="h:1", failed=True),
    Refused("m", step=Step.SECRET, address="h:1"),
    Fenced("m", address="h:1"),
    PeerViolation("m", step=Step.HANDSHAKE, address="h:1"),
    WorkersStuck("m", pids=(7, 8)),
    WorkersFailed("m", name="train.py", failures=(failure(3), failure(-9))),
    Signalled("m", signal=15),
    Stopped("m", by="user a"),
    InternalError("m"),
]


def drawn_tree() -> dict[str, tuple[str, ...]]:
    """Read the tree in the module's docstring: name -> the names of its bases, ours first."""
    found: dict[str, tuple[str, ...]] = {"HoldfastError": ("Exception",)}
    above = ["HoldfastError"]
    for line in (errors.__doc__ or "").splitlines():
        twig = re.match(r"    ((?:│   )*)[├└]── (\w+)(?: \((\w+)\))?", line)
        if twig:
            depth = len(twig[1]) // 4
            del above[depth + 1 :]
            found[twig[2]] = (above[depth], *filter(None, [twig[3]]))
            above.append(twig[2])
    return found


def test_every_error_is_listed_here_and_the_tree_is_drawn_as_it_is() -> None:
    exported = {getattr(errors, name) for name in errors.__all__}
    kinds = {kind for kind in exported if isinstance(kind, type) and issubclass(kind, Exception)}
    assert kinds == {type(error) for error in EVERY}
    real = {kind.__name__: tuple(base.__name__ for base in kind.__bases__) for kind in kinds}
    assert drawn_tree() == real


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (UsageError, ValueError),
        (TimeoutExpired, TimeoutError),
        (Unavailable, ConnectionError),
        (RendezvousTimedOut, TimeoutError),
        (StoreUnavailable, Unavailable),
        (StoreFull, StoreUnavailable),
        (RendezvousLost, StoreUnavailable),
        (LeaseLost, Unavailable),
        (RendezvousClosed, ConnectionError),
        (Refused, PermissionError),
        (Fenced, Refused),
        (PeerViolation, HoldfastError),
        (CallCancelled, RuntimeError),
        (CallTimedOut, TimeoutError),
        (CallTimedOut, RuntimeError),
        (PeerLost, RuntimeError),
        (Overloaded, RuntimeError),
        (RemoteError, RuntimeError),
        (ReferenceFailed, RuntimeError),
        (WorkersStuck, Unavailable),
        (WorkersFailed, HoldfastError),
        (Signalled, HoldfastError),
        (Stopped, HoldfastError),
        (InternalError, HoldfastError),
    ],
)
def test_each_is_also_what_people_catch(kind: type[HoldfastError], builtin: type) -> None:
    assert issubclass(kind, builtin)
    assert issubclass(kind, HoldfastError)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_each_survives_pickling_with_its_fields(error: HoldfastError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error) == "m"
    assert vars(again) == vars(error)
    assert vars(copy.copy(error)) == vars(error)


def test_fields_have_defaults() -> None:
    assert TimeoutExpired("m").waiting_for == ()
    assert not TimeoutExpired("m").maybe_applied
    assert not StoreUnavailable("m").maybe_applied
    assert Unavailable("m").step is Refused("m").step is PeerViolation("m").step is None
    assert Unavailable("m").address == Refused("m").address == PeerViolation("m").address == ""

    assert WorkersFailed("m").failures == ()
    assert WorkersFailed("m").name == ""
    assert WorkersStuck("m").pids == ()


@pytest.mark.parametrize(("code", "expected"), [(3, 3), (-9, 137), (0, 1)])
def test_failed_workers_give_the_code_of_the_first_cause(code: int, expected: int) -> None:
    error = WorkersFailed("m", failures=(failure(code), failure(1)))
    assert error.exit_code == expected


def test_failed_workers_never_give_success_and_a_signal_gives_its_shell_code() -> None:
    assert WorkersFailed("m").exit_code == 1
    again = SimpleNamespace(exit=SimpleNamespace(shell_code=3), repeated=3)
    assert WorkersFailed("m", failures=(again,)).exit_code == 80
    assert Signalled("m", signal=2).exit_code == 130


def test_steps_are_in_the_order_in_which_they_are_taken() -> None:
    assert [str(step) for step in Step] == [
        "name resolution",
        "TCP connection",
        "handshake",
        "protocol version",
        "secret",
    ]


def test_a_lost_peer_is_told_to_each_by_an_error_of_its_own() -> None:
    first = PeerLost("m", peer="w1", incarnation="i")
    other = first.anew()
    assert other is not first
    assert (str(other), other.peer, other.incarnation) == ("m", "w1", "i")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("m"), 2),
        (RunOver("m"), 2),
        (Unavailable("m"), 69),
        (StoreUnavailable("m"), 69),
        (LeaseLost("m"), 69),
        (InternalError("m"), 70),
        (HoldfastError("m"), 70),
        (TimeoutExpired("m"), 75),
        (PeerViolation("m"), 76),
        (Refused("m"), 77),
        (WorkersStuck("m", pids=(7,)), 69),
        (WorkersFailed("m", failures=(failure(-11),)), 139),
        (Signalled("m", signal=15), 143),
        (Stopped("m", by="user a"), 79),
    ],
)
def test_codes_of_errors(error: HoldfastError, code: int) -> None:
    assert exit_code(error) == code
