"""The page of a job: nodes and workers, what happened, logs and stacks, live in a browser.

Layout, in reading order (◦ = pure)
    view.py ◦      what the page shows, and what of it has changed
    guard.py ◦     which requests are answered, and the headers of replies
    log_window.py  a part of a log file, in lines
    source.py      what the agents of a job on this machine say
    server.py      answers a browser, and sends it what changes

page.html is the page itself: one file, which asks for nothing from any other host.
"""

from __future__ import annotations
