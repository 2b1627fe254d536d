"""The newest value of each key that controls a run."""

from __future__ import annotations

from holdfast.rendezvous.control import Control


def test_nothing_is_known_at_first() -> None:
    control = Control()
    assert (control.value("k"), control.revision("k")) == (None, 0)


def test_what_is_older_is_no_news() -> None:
    control = Control()
    assert control.is_news("k", b"new", 5)
    assert not control.is_news("k", b"old", 4)
    assert not control.is_news("k", b"again", 5)
    assert (control.value("k"), control.revision("k")) == (b"new", 5)
    assert control.is_news("k", None, 6)
    assert control.value("k") is None


def test_what_was_read_just_now_is_always_news() -> None:
    control = Control()
    assert control.is_news("k", b"new", 5)
    assert control.is_news("k", b"read", 0)
    assert control.value("k") == b"read"
