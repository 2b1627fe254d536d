"""Which requests the page answers, and the headers of its replies.

The link has a token; the first reply puts it into a cookie, which the browser sends from then on.

Guarantees
    PG-1  No request is answered without the token, in the link of the page itself or in the cookie.
    PG-2  A request is answered only if its Host is an address, or a name of this machine: a page of
          another host whose name is made to lead here (DNS rebinding) gets nothing.
    PG-3  What another site lets a browser ask for is refused, even if the browser adds the cookie.
    PG-4  Replies tell the browser to run no script but the page's own, to load nothing from any
          other host, to show it in no frame, to guess no types and to send no referrer.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable

from holdfast.errors import HoldfastError
from holdfast.net.http_messages import ServedRequest
from holdfast.records import dataclass

__all__ = ["PageForbidden", "PageGuard", "page_headers"]

_PORT = re.compile(r":[0-9]{1,5}$")
_OWN_SITE = ("same-origin", "none")
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


class PageForbidden(HoldfastError):
    """A request that the page does not answer; `status` is HTTP's."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class PageGuard:
    """Judges requests. `label` tells the cookies of two pages of one host apart."""

    token: str
    label: str
    names: frozenset[str]

    def admit(self, request: ServedRequest) -> tuple[tuple[str, str], ...]:
        """Return headers that the reply needs; PageForbidden if there is to be no other reply."""
        if not self._is_ours(request.headers.get("host", "")):
            raise PageForbidden(421, "the Host header must name this machine")
        is_page = request.path == "/"
        given = request.query.get("token", "") if is_page else ""
        if self._fits(given):
            cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            return (("Set-Cookie", cookie),)
        if not any(self._fits(value) for value in self._cookies(request)):
            raise PageForbidden(403, "open the link that holdfast printed: it has the token")
        if not is_page and request.headers.get("sec-fetch-site", "none") not in _OWN_SITE:
            raise PageForbidden(403, "another site asked for it")
        return ()

    @property
    def cookie(self) -> str:
        """The name of the cookie."""
        return f"holdfast-{self.label}"

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _cookies(self, request: ServedRequest) -> Iterable[str]:
        for part in request.headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie:
                yield value

    def _is_ours(self, host: str) -> bool:
        bare = _PORT.sub("", host)
        if bare.startswith("[") and bare.endswith("]"):
            bare = bare[1:-1]
        if bare.lower().rstrip(".") in self.names:
            return True
        try:
            ipaddress.ip_address(bare)
        except ValueError:
            return False
        return True  # a name that leads here is not an address


def page_headers(html: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of every reply (PG-4), for a page with scripts and styles inside it."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(html):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    policy = "; ".join(
        (
            "default-src 'none'",
            *(f"{kind}-src {' '.join(found)}" for kind, found in allowed.items()),
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return (
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )
