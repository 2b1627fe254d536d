"""TLS to servers that are not holdfast's own: certificates by files, errors that name the step.

The server's certificate is always checked, and so is its name; TLS 1.2 is the oldest version that
is spoken. A certificate of our own is shown if there is one. The files are read once, when the
settings are loaded.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import field

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, PeerViolation, Refused, Step, Unavailable, UsageError
from holdfast.net.address import Address
from holdfast.records import dataclass

__all__ = ["ClientTls", "load_client_tls", "refusal"]

HANDSHAKE_WITHIN_S = 5.0

# How OpenSSL names what a server says of a certificate that it does not like, or misses.
_REFUSALS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE")
_HUNG_UP = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a client needs for TLS: see `load_client_tls`."""

    context: ssl.SSLContext = field(repr=False)
    files: dict[str, str]
    """The files that were given, by the names of their parameters."""

    def secure(self, sock: socket.socket, address: Address, deadline: Deadline) -> ssl.SSLSocket:
        """Shake hands on a connected socket, which is closed if that fails.

        Refused if one side does not trust the other, PeerViolation if the other does not speak TLS,
        Unavailable if it disconnects or is silent; each names the step.
        """
        name = address.host.partition("%")[0].rstrip(".")
        secured: ssl.SSLSocket | None = None
        try:
            secured = self.context.wrap_socket(
                sock, server_hostname=name, do_handshake_on_connect=False
            )
            secured.settimeout(max(deadline.sooner(HANDSHAKE_WITHIN_S).remaining() or 0.0, 0.001))
            secured.do_handshake()
        except OSError as error:
            (secured or sock).close()
            raise _unshaken(error, address) from None
        return secured


def load_client_tls(
    cert: str | None = None, key: str | None = None, cacert: str | None = None
) -> ClientTls:
    """Read the files, all of them PEM. UsageError names the one that is wrong, and says how.

    `cert` is what we show to the server; its private key is in `key`, or beside it. `cacert`
    holds the authorities that we trust; without it they are those that this machine trusts.
    """
    named = {"cert": cert, "key": key, "cacert": cacert}
    files = {name: path for name, path in named.items() if path is not None}
    if key is not None and cert is None:
        raise UsageError(f"key {key!r}: needs cert, the certificate that it belongs to")
    for name, path in files.items():
        _check_readable(name, path)
    context = _trusting("cacert", cacert)
    if cert is not None:
        _trusting("cert", cert)  # only to see that it holds a certificate
        _load_own(context, cert, key)
    return ClientTls(context, files)


def refusal(error: OSError, address: Address) -> Refused | None:
    """Return an error of a socket as the server's refusal of our certificate, if it is that.

    Since TLS 1.3 a client has shaken hands before the server judges it, so the verdict may come
    with the first reading.
    """
    reason = _reason(error)
    if "ALERT" not in reason or not any(name in reason for name in _REFUSALS):
        return None
    said = reason.partition("ALERT_")[2].replace("_", " ").lower()
    return Refused(
        f"TLS handshake with {address}: the server refuses our certificate, or wants one: {said}",
        step=Step.HANDSHAKE,
        address=str(address),
    )


def _check_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{name} {path!r}: {why}") from None


def _trusting(name: str, path: str | None) -> ssl.SSLContext:
    """Return a context that trusts the certificates in a file, or those that this machine does."""
    try:
        context = ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise UsageError(f"{name} {path!r}: holds no certificate in PEM form") from None
    # OpenSSL may have no lower limit of its own; where this machine sets a higher one, that stays.
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    return context


def _load_own(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    try:
        # Without a password OpenSSL would ask for it at the terminal.
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        where = f"cert {cert!r}" if key is None else f"key {key!r}"
        if "MISMATCH" in _reason(error):
            raise UsageError(f"{where}: the key is not the one of cert {cert!r}") from None
        raise UsageError(
            f"{where}: holds no private key in PEM form, or one that is encrypted"
        ) from None


def _unshaken(error: OSError, address: Address) -> HoldfastError:
    head = f"TLS handshake with {address}"
    refused = refusal(error, address)
    if refused is not None:
        return refused
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"{head}: we do not trust the server: {error.verify_message}"
        return Refused(text, step=Step.HANDSHAKE, address=str(address))
    if isinstance(error, TimeoutError):
        why = "the server is silent"
    elif isinstance(error, ssl.SSLError) and not isinstance(error, _HUNG_UP):
        said = _reason(error).replace("_", " ").lower()
        text = f"{head}: the server does not speak TLS as we do: {said}"
        return PeerViolation(text, step=Step.HANDSHAKE, address=str(address))
    elif isinstance(error, ssl.SSLError):
        why = "the server closed the connection"
    else:
        why = error.strerror or str(error)
    return Unavailable(f"{head}: {why}", step=Step.HANDSHAKE, address=str(address))


def _reason(error: OSError) -> str:
    """Return OpenSSL's name for an error; empty if the error is not OpenSSL's."""
    return str(getattr(error, "reason", None) or "")
