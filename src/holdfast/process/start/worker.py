"""The first lines of a worker: they run child.py in its compiled form.

A script that is run by its path is compiled each time anew. For child.py that would take a fifth of
the time in which a worker starts, and a machine may have hundreds of them; so this is the script.
"""

from __future__ import annotations

from _frozen_importlib_external import SourceFileLoader

path = f"{__file__.removesuffix('worker.py')}child.py"
exec(SourceFileLoader("child", path).get_code("child"))  # type: ignore[arg-type]  # noqa: S102
