"""Make many calls under faults: `python -m tests.soak --calls 200000`."""

from __future__ import annotations

import sys

from tests.soak.soak import main

if __name__ == "__main__":
    sys.exit(main())
