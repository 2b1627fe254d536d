"""Kill workers and agents of real jobs: `python -m tests.chaos --kills 200`."""

from __future__ import annotations

import sys

from tests.chaos.chaos import main

if __name__ == "__main__":
    sys.exit(main())
