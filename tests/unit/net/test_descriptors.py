"""The limit of open files: raised for servers, and given back."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from holdfast.net.descriptors import many_descriptors, share_of_descriptors

FEW = 512


@pytest.fixture
def hard() -> Iterator[int]:
    """Begin with a low soft limit; give the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard <= FEW:
        pytest.skip(f"only {hard} descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_is_raised_to_the_hard_one_and_given_back(hard: int) -> None:
    with many_descriptors() as before:
        assert before == (FEW, hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        with many_descriptors() as again:
            assert again is None
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (FEW, hard)


def test_where_it_cannot_be_raised_it_stays(hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(resource, "setrlimit", refuse)
        with many_descriptors() as before:
            assert before is None
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (FEW, hard)


@pytest.mark.usefixtures("hard")
def test_unauthenticated_connections_get_a_share_of_descriptors() -> None:
    assert share_of_descriptors(10) == 10
    assert share_of_descriptors(FEW // 8) == FEW // 8
    assert share_of_descriptors(1024) == FEW // 8
    assert share_of_descriptors(1) == 1
