"""Backends by name: ours, registered ones, and those of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.rendezvous import registry
from holdfast.rendezvous.backends import BACKENDS
from holdfast.rendezvous.handler import Rendezvous
from holdfast.rendezvous.parameters import RendezvousParameters

OURS = ("c10d", "etcd", "etcd-v2", "file", "static")

PACKAGE = """\
made = []

def create(parameters):
    made.append(parameters)
    return "a rendezvous of theirs"
"""


def params(backend: str) -> RendezvousParameters:
    return RendezvousParameters(backend, "", "job", 1, 1)


def never(parameters: RendezvousParameters) -> Rendezvous:
    raise AssertionError


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution that offers backends."""
    (tmp_path / "holdfast_theirs_for_test.py").write_text(PACKAGE)
    info = tmp_path / "holdfast_theirs_for_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: holdfast-theirs-for-test\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[holdfast.rendezvous]\n"
        "theirs = holdfast_theirs_for_test:create\n"
        "broken = holdfast_theirs_for_test:nothing\n"
        "absent = holdfast_absent_for_test:create\n"
        "c10d = holdfast_theirs_for_test:create\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("holdfast_theirs_for_test", None)


def test_ours_are_known() -> None:
    assert registry.known() == OURS


def test_an_unknown_one_lists_the_known() -> None:
    with pytest.raises(UsageError) as caught:
        registry.create_rendezvous(params("zookeeper"))
    assert str(caught.value) == (
        "rendezvous backend 'zookeeper': unknown; known are c10d, etcd, etcd-v2, file, static"
    )


def test_registering_makes_a_backend_known() -> None:
    made: list[RendezvousParameters] = []

    def create(parameters: RendezvousParameters) -> Rendezvous:
        made.append(parameters)
        raise UsageError("theirs to say")

    registry.register("mine", create)
    registry.register("mine", create)  # the same again changes nothing
    assert registry.known() == (*OURS[:4], "mine", "static")
    with pytest.raises(UsageError, match="^theirs to say$"):
        registry.create_rendezvous(params("mine"))
    assert made == [params("mine")]


@pytest.mark.parametrize("name", ["", "c10d", "static", "theirs", "mine"])
def test_a_name_is_given_once(name: str, package: None) -> None:
    registry.register("mine", BACKENDS["file"])
    with pytest.raises(UsageError, match=f"^rendezvous backend '{name}': the name is empty or ta"):
        registry.register(name, never)


def test_a_package_offers_one(package: None) -> None:
    assert "theirs" in registry.known()
    found: object = registry.create_rendezvous(params("theirs"))
    assert found == "a rendezvous of theirs"


def test_a_package_cannot_replace_ours(package: None) -> None:
    with pytest.raises(UsageError, match="^rendezvous rank 1: "):
        registry.create_rendezvous(
            RendezvousParameters("static", "", "job", 1, 1, config={"rank": "1"})
        )
    with pytest.raises(UsageError, match="^rendezvous store_type 'x': "):
        registry.create_rendezvous(
            RendezvousParameters("c10d", "", "job", 1, 1, config={"store_type": "x"})
        )


@pytest.mark.parametrize("name", ["broken", "absent"])
def test_one_that_cannot_be_loaded_is_named(package: None, name: str) -> None:
    with pytest.raises(UsageError, match=f"^rendezvous backend '{name}': .* cannot be loaded: "):
        registry.create_rendezvous(params(name))
