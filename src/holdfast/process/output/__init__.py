"""Where the output of worker processes goes.

Layout, in reading order (◦ = pure)
    prefix.py ◦       the text before each line of a worker's output
    streams.py ◦      which stream of which worker goes where
    pump.py           carries the workers' output to files and to the console
    logs.py           the folders of a run, and the streams of an attempt
"""

from __future__ import annotations
