"""What went wrong in a worker process.

Layout, in reading order (◦ = pure)
    failure.py ◦      what went wrong in a worker: the error file's format, and the first cause
    memory.py         whether the kernel killed for want of memory
    errorfile.py      error files on disk, which nobody trusts; `record`
    stacks.py         which workers can be asked for their stacks
"""

from __future__ import annotations
