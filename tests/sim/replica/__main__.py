"""Run the simulation: `python -m tests.sim.replica --seeds 1000`."""

from __future__ import annotations

import sys

from tests.sim.replica.sim import main

if __name__ == "__main__":
    sys.exit(main())
