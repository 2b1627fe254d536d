"""How tensors are pickled in messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from holdfast.rpc.values.pickling import dump, load, teach
from holdfast.torch_compat.tensors.pickling import GAPS_BYTES, SMALL_BYTES, reduce_tensor


@pytest.fixture(autouse=True)
def _taught() -> None:
    teach(torch.Tensor, reduce_tensor)


def sent(value: Any) -> tuple[Any, int]:
    """Return a value as it arrives, and how many bytes that took."""
    body, buffers = dump(value)
    size = len(body) + sum(memoryview(one).nbytes for one in buffers)
    return load(bytes(body), [bytearray(one) for one in buffers]), size


DTYPES = (
    *(torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, SMALL_BYTES, 1 << 16])
def test_a_tensor_arrives_whole_and_can_be_written_to(dtype: Any, count: int) -> None:
    tensor = torch.arange(count * 2).reshape(2, count).to(dtype)
    found, _ = sent(tensor)
    assert type(found) is torch.Tensor
    assert found.dtype is dtype
    assert torch.equal(found, tensor)
    before = tensor.clone()
    found.zero_()
    assert torch.equal(tensor, before)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(7.0),
        lambda: torch.empty(0, 3),
        lambda: torch.ones(2, 2).to_sparse(),
        lambda: torch.ones(2, 2).to_sparse_csr(),
        lambda: torch.tensor([1 + 2j, 3j]).conj(),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8),
    ],
    ids=["scalar", "empty", "sparse", "csr", "conjugate", "quantized"],
)
@pytest.mark.filterwarnings("ignore")  # torch's, of what it has not finished, or will give up
def test_a_tensor_of_another_kind_arrives_too(make: Any) -> None:
    tensor = make()
    found, _ = sent([tensor])
    assert found[0].layout is tensor.layout
    assert found[0].shape == tensor.shape
    assert found[0].dtype is tensor.dtype
    assert torch.equal(_plain(found[0]), _plain(tensor))


def _plain(tensor: Any) -> Any:
    return tensor.dequantize() if tensor.is_quantized else tensor.to_dense().resolve_conj()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "make",
    [
        lambda big: big.narrow(1, 2, 90),
        lambda big: big.t(),
        lambda big: big[:, ::2],
        lambda big: big[:10:3, 1],  # it is small
        lambda big: big[:1].expand(50, 100),
        lambda big: big[50:],
        lambda big: big.flatten().unfold(0, 3, 1),
    ],
)
def test_a_view_arrives_with_its_strides_and_nothing_around_it(make: Any, dtype: Any) -> None:
    """Proves TN-1."""
    view = make(torch.rand(100, 100).to(dtype))
    found, size = sent(view)
    assert torch.equal(found, view)
    assert found.stride() == view.stride()
    assert size < view.numel() * view.element_size() + 2000


@pytest.mark.parametrize(
    ("make", "strides"),
    [
        (lambda big: big[:, 1], (1,)),
        (lambda big: big[::3, :10].t(), (34, 1)),
        (lambda big: big[:, 1:2].expand(100, 50), (1, 0)),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_a_view_that_is_full_of_gaps_arrives_without_them(
    make: Any, strides: tuple[int, ...], grad: bool
) -> None:
    """Proves TN-1."""
    view = make(torch.rand(100, 100)).requires_grad_(grad)
    found, _ = sent(view)
    assert torch.equal(found, view)
    assert found.stride() == strides
    assert found.requires_grad is grad
    assert found.untyped_storage().nbytes() <= view.numel() * view.element_size()


@pytest.mark.parametrize(
    ("count", "span", "is_kept"),
    [
        (2, GAPS_BYTES - 1, True),
        (2, GAPS_BYTES, False),
        (4 * GAPS_BYTES, 8 * GAPS_BYTES - 1, True),
        (4 * GAPS_BYTES, 8 * GAPS_BYTES, False),
    ],
)
def test_gaps_are_kept_below_their_limits(count: int, span: int, is_kept: bool) -> None:
    """Proves TN-1."""
    half = count // 2
    strides = (span - half, 1)
    view = torch.arange(span, dtype=torch.uint8).as_strided((2, half), strides)
    found, _ = sent(view)
    assert torch.equal(found, view)
    assert found.stride() == (strides if is_kept else (half, 1))


@pytest.mark.parametrize("make", [lambda one: one, lambda one: one.t(), lambda one: one * 2])
def test_a_gradient_is_required_of_a_leaf_that_arrives(make: Any) -> None:
    """Proves TN-2."""
    tensor = make(torch.rand(4, 4, requires_grad=True))
    found, _ = sent(tensor)
    assert torch.equal(found, tensor)
    assert found.requires_grad
    assert found.is_leaf


def test_what_is_one_tensor_stays_one() -> None:
    tensor = torch.ones(3)
    found, _ = sent([tensor, {"again": tensor}])
    assert found[0] is found[1]["again"]


def test_what_a_program_has_hung_on_a_tensor_comes_along() -> None:
    tensor = torch.ones(2)
    tensor.note = "mine"
    found, _ = sent(tensor)
    assert found.note == "mine"


def test_a_small_tensor_goes_as_numpy_shows_it() -> None:
    rebuild, parts = reduce_tensor(torch.ones(2, 2))
    assert parts == (torch.ones(4).numpy().tobytes(), "<f4", (2, 2), False)
    assert torch.equal(rebuild(*parts), torch.ones(2, 2))
