"""What went wrong in a worker process.

Layout, in reading order (◦ = pure)
    failure.py ◦      what went wrong in a worker: the error file's format, and the first cause
    memory.py         whether the kernel killed a process: out of memory
    errorfile.py      error files on disk, which are not trusted; `record`
    usage.py          what a process has used and written
    stacks.py         which workers can be asked for their stacks
"""

from __future__ import annotations
