"""Which requests the page answers."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

import pytest

from holdfast.net.http_messages import ServedRequest
from holdfast.page.guard import PageForbidden, PageGuard, page_headers

GUARD = PageGuard("secret", "k1", frozenset({"localhost", "vm"}))
COOKIE = "a=b; holdfast-k1=secret"


def request(path: str = "/", token: str | None = None, **headers: str) -> ServedRequest:
    query = {} if token is None else {"token": token}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ServedRequest("GET", path, query, {"host": "127.0.0.1:80", **named})


def refused(asked: ServedRequest) -> int:
    with pytest.raises(PageForbidden) as caught:
        GUARD.admit(asked)
    return caught.value.status


def test_pg1_the_link_gives_the_cookie_which_then_suffices() -> None:
    cookie = "holdfast-k1=secret; Path=/; HttpOnly; SameSite=Strict"
    assert GUARD.admit(request(token="secret")) == (("Set-Cookie", cookie),)
    for path in ("/", "/events", "/logs", "/nowhere"):
        assert GUARD.admit(request(path, cookie=COOKIE)) == ()


@pytest.mark.parametrize("path", ["/", "/events", "/stacks", "/logs", "/nowhere"])
def test_pg1_nothing_is_answered_without_the_token(path: str) -> None:
    assert refused(request(path)) == 403
    assert refused(request(path, token="")) == 403
    assert refused(request(path, token="secre")) == 403
    for cookie in ("holdfast-k1=", "holdfast-k1=x", "holdfast-k2=secret", "secret", "é=1;;"):
        assert refused(request(path, cookie=cookie)) == 403


def test_pg1_the_token_is_taken_from_the_link_of_the_page_only() -> None:
    assert refused(request("/stacks", token="secret")) == 403


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:8080", "vm:80", "vm.", "127.0.0.1", "10.0.0.7:80"),
        *("[::1]:80", "[fe80::1]"),
    ],
)
def test_pg2_names_of_this_machine_and_addresses_are_ours(host: str) -> None:
    GUARD.admit(request(token="secret", host=host))


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "evil.example:80", "vm.evil.example", "localhost.evil.example"),
        *("127.0.0.1.evil.example", "127.0.0.1@evil.example", "vm:80:80", "[::1", "1.2.3"),
    ],
)
def test_pg2_any_other_host_is_refused(host: str) -> None:
    assert refused(request(token="secret", cookie=COOKIE, host=host)) == 421


def test_pg3_what_another_site_asks_for_is_refused() -> None:
    for site in ("cross-site", "same-site", "nonsense"):
        assert refused(request("/stacks", cookie=COOKIE, sec_fetch_site=site)) == 403
    for site in ("same-origin", "none"):
        GUARD.admit(request("/stacks", cookie=COOKIE, sec_fetch_site=site))
    GUARD.admit(request("/", cookie=COOKIE, sec_fetch_site="cross-site"))  # a link to the page


def test_pg4_only_the_pages_own_script_and_style_are_allowed() -> None:
    html = "<style>a</style><p><script>b\n</script>"
    headers = dict(page_headers(html))
    policy = headers["Content-Security-Policy"]
    for kind, text in (("script", "b\n"), ("style", "a")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"; {kind}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_pg4_the_page_is_whole_in_itself() -> None:
    html = resources.files("holdfast.page").joinpath("page.html").read_text("utf-8")
    assert dict(page_headers(html))["Content-Security-Policy"].count("sha256-") == 2
    assert "http" not in html  # it names no other host
    assert "innerHTML" not in html
