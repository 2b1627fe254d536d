"""Values as bytes and back: whole, and in memory of their own."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.errors import RemoteError, UsageError
from holdfast.rpc.rref.rref import RRef
from holdfast.rpc.values import stream
from holdfast.rpc.values.pickling import dump, dump_plain, load, teach
from holdfast.rpc.values.stream import BYTES_OUTSIDE, OUTSIDE_BYTES
from holdfast.rpc.wire.messages import Buffer
from tests.unit.rpc.world import agents
from tests.waiting import until

LARGE = OUTSIDE_BYTES  # bytes that lie outside
SIZES = pytest.mark.parametrize("n", [5, LARGE], ids=["inside", "outside"])


def sent(value: Any) -> tuple[bytes, list[Buffer]]:
    """Return what arrives: copies, as a connection makes them."""
    body, buffers = dump(value)
    return bytes(body), [
        bytes(buffer) if type(buffer) is bytes else bytearray(buffer) for buffer in buffers
    ]


def through(value: Any) -> Any:
    return load(*sent(value))


def is_own(array: Any) -> bool:
    """Say whether it can be written to."""
    array[...] = 0
    return not array.any()


class TestArrays:
    @SIZES
    def test_contiguous(self, n: int) -> None:
        array = np.arange(n, dtype="f8")
        came = through(array)
        assert np.array_equal(came, array)
        assert is_own(came)
        assert array[-1] == n - 1

    def test_what_is_large_is_not_copied_into_the_pickle(self) -> None:
        array = np.zeros(LARGE, dtype="u1")
        body, (buffer,) = dump(array)
        assert len(body) < 1000
        assert memoryview(buffer).nbytes == LARGE
        assert np.shares_memory(np.frombuffer(buffer, "u1"), array)
        body, buffers = dump(array[1:])
        assert buffers == []

    @SIZES
    @pytest.mark.parametrize(
        "view",
        [
            lambda array: array[::2],
            lambda array: array[::-1],
            lambda array: array.T,
            np.asfortranarray,
            lambda array: np.broadcast_to(array[0], array.shape),
        ],
    )
    def test_views(self, n: int, view: Callable[[Any], Any]) -> None:
        array = view(np.arange(4 * n, dtype="i8").reshape(n, 4))
        body, buffers = sent(array)
        came = load(body, buffers)
        assert np.array_equal(came, array)
        assert came.dtype == array.dtype
        assert is_own(came)
        assert n < LARGE or len(body) < 1000  # no detour through the pickle

    @SIZES
    def test_read_only(self, n: int) -> None:
        array = np.arange(n, dtype="f4")
        array.flags.writeable = False
        came = through(array)
        assert np.array_equal(came, array)
        assert is_own(came)

    @pytest.mark.parametrize(
        "array",
        [
            np.array(3.5),
            np.zeros((0, 3)),
            np.array([(1, 2.0)] * LARGE, dtype=[("a", "i4"), ("b", "f8")]),
            np.array([1, "two", None], dtype=object),
            np.array(["x", "yy"]),
            np.array(["2026-11-16"], dtype="datetime64[D]"),
            np.ma.masked_array([1, 2, 3], mask=[False, True, False]),
            np.float32(1.5),
        ],
        ids=["scalar", "empty", "structured", "objects", "text", "dates", "masked", "number"],
    )
    def test_kinds(self, array: Any) -> None:
        came = through(array)
        assert type(came) is type(array)
        assert came.dtype == array.dtype
        assert came.shape == array.shape
        assert came.tolist() == array.tolist()


def with_told(tensor: Any) -> Any:
    tensor.told = "so"
    return tensor


class TestTensors:
    @SIZES
    def test_contiguous(self, n: int) -> None:
        tensor = torch.arange(n, dtype=torch.float32)
        came = through(tensor)
        assert torch.equal(came, tensor)
        assert is_own(came)
        assert tensor[-1] == n - 1

    def test_what_is_large_is_not_copied_into_the_pickle(self) -> None:
        tensor = torch.zeros(LARGE, dtype=torch.uint8)
        body, (buffer,) = dump(tensor)
        assert len(body) < 1000
        tensor[0] = 7
        assert memoryview(buffer)[0] == 7

    @pytest.mark.parametrize(
        "view",
        [
            lambda all_: all_[5:7],
            lambda all_: all_[:0],
            lambda all_: all_[:1].conj(),
            lambda all_: all_[:1].conj().imag,
            lambda all_: with_told(all_[:2]),
            lambda all_: with_told(all_.detach()[:2]),
        ],
    )
    def test_a_small_view_does_not_take_all_with_it(self, view: Callable[[Any], Any]) -> None:
        tensor = view(torch.ones(10**6, dtype=torch.complex64, requires_grad=True))
        body, buffers = dump(tensor)
        assert buffers == []
        assert len(body) < 1000
        came = load(body, buffers)
        assert torch.equal(came, tensor)
        assert (came.requires_grad, came.is_leaf) == (tensor.requires_grad, True)
        assert vars(came) == vars(tensor)

    @SIZES
    @pytest.mark.parametrize(
        "view",
        [
            lambda tensor: tensor[::2],
            lambda tensor: tensor.t(),
            lambda tensor: tensor[:, 1],
            lambda tensor: tensor[0].expand_as(tensor),
            lambda tensor: tensor[1, 1],
        ],
    )
    def test_views(self, n: int, view: Callable[[Any], Any]) -> None:
        tensor = view(torch.arange(4 * n).reshape(n, 4))
        came = through(tensor)
        assert torch.equal(came, tensor)
        assert is_own(came)

    @pytest.mark.parametrize(
        "kind",
        ["bfloat16", "float16", "float64", "int8", "bool", "complex64", "uint8", "float8_e4m3fn"],
    )
    @SIZES
    def test_types(self, kind: str, n: int) -> None:
        tensor = torch.ones(n).to(getattr(torch, kind))
        came = through(tensor)
        assert came.dtype == tensor.dtype
        assert torch.equal(came.view(torch.uint8), tensor.view(torch.uint8))

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1)])
    def test_shapes(self, shape: tuple[int, ...]) -> None:
        came = through(torch.ones(shape))
        assert came.shape == shape
        assert torch.equal(came, torch.ones(shape))

    @SIZES
    def test_sz2_gradients(self, n: int) -> None:
        leaf = torch.ones(n, requires_grad=True)
        for tensor in (leaf, leaf * 2):
            came = through(tensor)
            assert torch.equal(came, tensor)
            assert came.requires_grad
            assert came.is_leaf  # its history stays where it is
            came.sum().backward()
            assert torch.equal(came.grad, torch.ones(n))
        assert not through(leaf.detach()).requires_grad

    @pytest.mark.filterwarnings("ignore:Sparse CSR")
    @pytest.mark.parametrize("make", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
    def test_sz2_gradients_of_sparse_tensors(self, make: str) -> None:
        leaf = with_told(getattr(torch.eye(3), make)().requires_grad_())
        for tensor in (leaf, leaf * 2):
            came = through(tensor)
            assert torch.equal(came.to_dense(), tensor.to_dense())
            assert (came.requires_grad, came.is_leaf) == (True, True)
            assert vars(came) == vars(tensor)

    @pytest.mark.filterwarnings("ignore:Sparse CSR")
    @pytest.mark.parametrize("make", ["to_sparse", "to_sparse_csr", "to_sparse_csc", "to_bsr"])
    @pytest.mark.parametrize("size", [4, 0])
    def test_a_sparse_tensor_arrives_as_it_is_and_is_not_kept(self, make: str, size: int) -> None:
        dense = torch.eye(size)
        tensor = dense.to_sparse_bsr((1, 1)) if make == "to_bsr" else getattr(dense, make)()
        came = through(with_told(tensor))
        assert (came.layout, came.shape, came.dtype) == (tensor.layout, tensor.shape, tensor.dtype)
        assert torch.equal(came.to_dense(), dense)
        assert vars(came) == vars(tensor)
        if make == "to_sparse":
            assert came.is_coalesced()
            twice = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (1,), check_invariants=True)
            assert not through(twice).is_coalesced()
        gone = weakref.ref(came)
        del came
        assert gone() is None

    @SIZES
    def test_parameters(self, n: int) -> None:
        came = through(torch.nn.Parameter(torch.ones(n)))
        assert type(came) is torch.nn.Parameter
        assert came.requires_grad

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.eye(3).to_sparse(),
            torch.ones(3, dtype=torch.complex64).conj(),
            torch.imag(torch.ones(3, dtype=torch.complex64).conj()),
        ],
        ids=["sparse", "conjugate", "negative"],
    )
    def test_others_go_as_torch_sends_them(self, tensor: Any) -> None:
        came = through(tensor)
        assert came.layout == tensor.layout
        assert torch.equal(came.to_dense(), tensor.to_dense())

    def test_attributes_are_kept(self) -> None:
        assert through(with_told(torch.ones(2))).told == "so"

    def test_one_tensor_twice_stays_one(self) -> None:
        tensor = torch.ones(2)
        first, second = through([tensor, tensor])
        assert first is second


class Text(str):
    """Not a plain text: it may have its own way to be pickled."""

    __slots__ = ()


class TestPlain:
    @pytest.mark.parametrize(
        "value",
        [None, True, -1, 10**400, 0.5, "text", "\ud800", b"b" * LARGE, (), (1, "a", None)]
        + [("module:name", args, None) for args in ((), (1, b"x", None))],
        ids=lambda value: f"{value!r:.20}",
    )
    def test_plain_values_are_the_same_either_way(self, value: Any) -> None:
        body = dump_plain(value)
        assert body is not None
        came = load(body, ())
        assert came == value == through(value)
        assert type(came) is type(value)

    @pytest.mark.parametrize(
        "value",
        [[], {}, bytearray(1), Text("a"), (1, []), (1, (2, (3,))), (1, (Text("a"),)), 1j, print],
        ids=lambda value: f"{value!r:.20}",
    )
    def test_other_values_are_left_to_pickle(self, value: Any) -> None:
        assert dump_plain(value) is None


class TestBytes:
    @SIZES
    @pytest.mark.parametrize("kind", [bytes, bytearray])
    def test_bytes(self, n: int, kind: type) -> None:
        came = through(kind(b"x" * n))
        assert type(came) is kind
        assert came == b"x" * n

    @pytest.mark.parametrize("kind", [bytes, bytearray])
    @pytest.mark.parametrize(
        "around",
        [
            lambda large: large,
            lambda large: ("module:name", (1, large, b"small"), None),
            lambda large: ("module:name", ([1], large, bytearray(3)), {"more": 1}),
            lambda large: (lambda: 3, (large,), None),
            lambda large: ("module:name", ([large],), None),
            lambda large: ("module:name", (), {"data": {"deep": (large, 1)}}),
        ],
    )
    def test_large_bytes_are_not_copied_into_the_pickle(
        self, around: Callable[[Any], Any], kind: type
    ) -> None:
        large = kind(bytes(range(256)) * (BYTES_OUTSIDE // 256))
        value = around(large)
        assert dump_plain(value) is None
        body, buffers = sent(value)
        assert len(buffers) == 1
        assert len(body) < 10_000
        came = load(body, buffers)
        if callable(value[0]):
            came, value = came[1:], value[1:]
        assert came == value
        assert repr(came) == repr(value)  # which also names the kind
        if kind is bytearray:
            large.extend(b"more")  # nothing is kept of it

    @pytest.mark.parametrize("kind", [bytes, bytearray])
    def test_bytes_that_are_not_large_are_copied(self, kind: type) -> None:
        for value in (kind(BYTES_OUTSIDE - 1), [kind(70_000)], (1, (), kind(70_000))):
            body, buffers = sent(value)
            assert buffers == []
            assert load(body, buffers) == value
        assert dump_plain(("a" * BYTES_OUTSIDE,)) is not None

    @SIZES
    def test_memoryviews(self, n: int) -> None:
        memory = bytearray(range(5)) * n
        for view in (memoryview(memory), memoryview(bytes(memory)), memoryview(memory)[::2]):
            came = through(view)
            assert type(came) is memoryview
            assert came == view
        memory[0] = 99
        assert through(memoryview(memory))[0] == 99

    @SIZES
    @pytest.mark.parametrize("order", [np.ascontiguousarray, np.asfortranarray, np.transpose])
    def test_memoryviews_keep_the_order_of_their_items(
        self, n: int, order: Callable[[Any], Any]
    ) -> None:
        view = memoryview(order(np.arange(3 * n, dtype="i4").reshape(n, 3)))
        came = through(view)
        assert came.tolist() == view.tolist()
        assert (came.format, came.shape) == (view.format, view.shape)

    @SIZES
    @pytest.mark.parametrize("order", [np.ascontiguousarray, np.asfortranarray, np.transpose])
    def test_of_items_that_memoryviews_do_not_know_the_bytes_arrive_in_order(
        self, n: int, order: Callable[[Any], Any]
    ) -> None:
        array = order(np.arange(3 * n, dtype=">i4").reshape(n, 3))
        came = through(memoryview(array))
        assert (came.format, came.ndim) == ("B", 1)
        assert came.tobytes() == array.tobytes()

    def test_memoryviews_of_other_things(self) -> None:
        numbers = memoryview(bytearray(range(16))).cast("i", (2, 2))
        assert through(numbers) == numbers
        for empty in (np.zeros((0, 3)), np.zeros((3, 0), order="F"), np.zeros((0, 3)).T):
            assert through(empty.data).nbytes == 0
        assert through(np.zeros(2, dtype=[("a", "i4")]).data).nbytes == 8

    def test_without_numpy(self) -> None:
        code = (
            "import sys; from holdfast.rpc.values.pickling import dump, load\n"
            "view = memoryview(b'abc')\n"
            "body, buffers = dump((len, view, lambda: 3))\n"
            "assert 'numpy' not in sys.modules and 'torch' not in sys.modules\n"
            "f, came, three = load(body, buffers)\n"
            "assert (f, came, three()) == (len, view, 3)\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Sulky:
    def __reduce__(self) -> Any:
        raise ValueError("leave me alone")


class Nameless:
    def __repr__(self) -> str:
        raise ValueError

    def __reduce__(self) -> Any:
        raise TypeError("no")


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()


class TestWhatPickleCannotDo:
    def test_lambdas_closures_and_classes_within_functions(self) -> None:
        offset = 3

        class Local:
            def add(self, x: int) -> int:
                return x + offset

        assert through(lambda x: x + offset)(4) == 7
        assert through(Local().add)(4) == 7

    def test_arrays_beside_a_lambda_are_not_copied_into_the_pickle(self) -> None:
        body, buffers = sent((lambda: 3, np.arange(LARGE), torch.ones(LARGE)))
        assert len(buffers) == 2
        three, array, tensor = load(body, buffers)
        assert three() == 3
        assert is_own(array)
        assert is_own(tensor)

    def test_more_buffers_than_a_message_may_have_lie_inside(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream, "BUFFERS_MAX", 2)
        body, buffers = dump([np.full(LARGE, n) for n in range(4)])
        assert len(buffers) == 2
        assert [array[-1] for array in load(body, buffers)] == [0, 1, 2, 3]

    def test_a_reducer_that_is_made_known_later(self) -> None:
        import copyreg

        through(1)
        copyreg.pickle(threading.local, lambda local: (int, (7,)))  # type: ignore[arg-type, return-value]
        try:
            assert through(threading.local()) == 7
        finally:
            del copyreg.dispatch_table[threading.local]

    @pytest.mark.parametrize("value", [threading.Lock(), [threading.Lock()], sys._getframe()])
    def test_a_value_that_cannot_be_pickled_at_all(self, value: Any) -> None:
        with pytest.raises(UsageError, match="cannot be pickled: "):
            dump(value)

    def test_the_error_says_of_which_class_it_was(self) -> None:
        with pytest.raises(UsageError, match=r"test_pickling\.Holder object at 0x.*pickle '_thr"):
            dump(Holder())

    def test_something_that_cannot_even_be_shown(self) -> None:
        with pytest.raises(UsageError, match="<Nameless instance .*>: cannot be pickled: no"):
            dump(Nameless())

    def test_nested_too_deeply(self) -> None:
        value: list[Any] = []
        for _ in range(10**5):
            value = [value]
        with pytest.raises(UsageError, match="cannot be pickled"):
            dump(value)
        while value:  # or freeing it would be too deep as well
            value = value[0]

    def test_an_error_while_pickling_is_raised(self) -> None:
        with pytest.raises(ValueError, match="leave me alone"):
            dump(Sulky())

    def test_without_cloudpickle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from holdfast.rpc.values.pickling import _cloud_pickler

        _cloud_pickler.cache_clear()
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        with pytest.raises(UsageError, match="lambdas and closures need cloudpickle"):
            dump(lambda: 3)


# Between agents.

kept: list[Any] = []


def keep(value: Any) -> Any:
    """What the callee does; it is this process, so that the test sees it."""
    kept.append(value)
    return value


def divide(one: int, other: int) -> float:
    return one / other


async def divide_later(one: int, other: int) -> float:
    return one / other


class TestCalls:
    @SIZES
    @pytest.mark.parametrize("make", [np.ones, torch.ones, lambda n: memoryview(bytearray(n))])
    def test_sz1_later_changes_are_not_seen_at_the_other_worker(
        self, make: Callable[[int], Any], n: int
    ) -> None:
        kept.clear()
        with agents(None, None) as (agent, _):
            mine = make(n)
            before = float(mine[0])
            theirs = agent.call("w1", keep, (mine,))
            mine[0] = 2
            (at_callee,) = kept
            assert (at_callee[0], theirs[0]) == (before, before)
            at_callee[0] = 3
            theirs[0] = 4
            assert (mine[0], at_callee[0], theirs[0]) == (2, 3, 4)
        kept.clear()

    def test_a_result_that_cannot_be_pickled_is_an_error_for_the_caller(self) -> None:
        with agents(None, None) as (agent, _):
            with pytest.raises(UsageError, match="cannot be pickled"):
                agent.call("w1", keep, (threading.Lock(),))
            with pytest.raises(UsageError, match="cannot be pickled"):
                agent.call("w1", threading.Lock)  # what it returns
            with pytest.raises(RemoteError, match="SystemExit: 3"):
                agent.call("w1", sys.exit, (3,))
            assert agent.call("w1", len, ("abc",)) == 3

    def test_the_traceback_begins_with_the_code_that_was_called(self) -> None:
        with agents(None, None) as (agent, _):
            for function in (divide, divide_later):
                with pytest.raises(ZeroDivisionError) as caught:
                    agent.call("w1", function, (1, 0))
                (note,) = caught.value.__notes__
                assert "one / other" in note
                assert "dispatcher.py" not in note
                assert "event_loop.py" not in note
            with pytest.raises(UsageError) as caught_here:
                agent.call("w1", threading.Lock)
            assert "pickling.py" in caught_here.value.__notes__[0]  # else nothing would be left

    def test_a_request_that_cannot_be_read_is_an_error_for_the_caller(self) -> None:
        with agents(None, None) as (agent, _), pytest.raises((ZeroDivisionError, RemoteError)):
            agent.call("w1", keep, (Trap(),))

    def test_a_reference_beside_a_lambda_is_counted_once(self) -> None:
        with agents(None, None) as (agent, owner):
            rref = agent.remote("w1", len, ("abc",))
            assert agent.call("w1", lambda value, other: other(value), (rref, fetch)) == 3
            del rref
            assert owner.rrefs.wait_answered(lambda: 10.0)
            assert agent.rrefs.wait_answered(lambda: 10.0)
            wait_for_none(owner)
            wait_for_none(agent)

    def test_a_reference_outside_of_a_call(self) -> None:
        with agents(None, None) as (agent, _):
            rref = agent.remote("w1", len, ("abc",))
            assert rref.to_here() == 3
            with pytest.raises(UsageError, match="can only be pickled as part of a call"):
                pickle.dumps(rref)


class Trap:
    def __reduce__(self) -> Any:
        return divmod, (1, 0)


def fetch(rref: RRef[int]) -> int:
    return rref.to_here()


def wait_for_none(agent: Any) -> None:
    until(lambda: not any(agent.rrefs.counts().values()), agent.rrefs.counts)


COLLECTING = """
import gc
from holdfast.rpc.values.pickling import dump


class Made:
    def __reduce__(self):
        return Made, ()

    def __del__(self):
        gc.collect()


class Maker:
    def __reduce__(self):
        return max, (Made(), [Made()], (Made(),))


for _ in range(20):
    dump([Maker(), Maker()])
print("alive")
"""


def test_the_garbage_collector_may_run_while_reduced_values_are_freed() -> None:
    """A pickler that is used again shows the collector what it is about to forget."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", COLLECTING],  # with memory that is wiped when freed
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


class Taught:
    """A kind that is pickled in a way of its own."""


def test_a_kind_can_be_taught_and_is_then_pickled_so_in_messages_only() -> None:
    teach(Taught, lambda _: (str, ("taught",)))
    assert load(*dump([Taught()])) == ["taught"]
    assert load(*dump([Taught(), lambda: 1]))[0] == "taught"  # by cloudpickle
    assert isinstance(pickle.loads(pickle.dumps(Taught())), Taught)
