"""MUNGE, by its programs: text that only one user can read, on any host of the cluster.

A credential is encrypted by the cluster's key, says which user made it, and is opened once, by the
user it was made for.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from holdfast.errors import Refused, Unavailable

__all__ = ["is_there", "open_credential", "seal"]

_WITHIN_S = 30.0
_UID = re.compile(rb"^UID:\s+(?:.*\()?(\d+)\)?\s*$", re.MULTILINE)


def is_there() -> bool:
    """Say whether its programs are installed."""
    return bool(shutil.which("munge") and shutil.which("unmunge"))


def seal(payload: bytes) -> bytes:
    """Return a credential that this user alone can open. Unavailable if MUNGE does not work."""
    return _run(["munge", f"--restrict-uid={os.geteuid()}"], payload).strip()


def open_credential(credential: bytes) -> bytes:
    """Return what this user has sealed. Refused for a credential of another user, or of none."""
    told = _run(["unmunge", "--keys=UID"], credential)
    facts, _, payload = told.partition(b"\n\n")
    found = _UID.search(facts)
    if found is None or int(found[1]) != os.geteuid():
        raise Refused("a MUNGE credential is of another user")
    return payload


def _run(command: list[str], data: bytes) -> bytes:
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} did not answer within {_WITHIN_S:g} s") from None
    except OSError as error:
        raise Unavailable(f"program {command[0]!r}: {error.strerror}") from None
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip()
        raise Refused(f"{command[0]}: {told:.200}")
    return done.stdout
