"""Observing: what happened, in types, and where it is told.

Layout, in reading order (◦ = pure)
    events.py ◦      what can happen, as frozen dataclasses; each repeats its cause
    recorder.py ◦    the last steps of a machine, and its state before them
    plain.py ◦       values as JSON, and back
    replay.py ◦      recordings as JSON; a recording is run again
    metrics.py ◦     counters, gauges, histograms, and a snapshot of them
    job_figures.py ◦  numbers that only the events of an agent tell
    prometheus.py ◦  a snapshot in Prometheus's text format
    lines.py ◦       a job in lines: which are written, and what they say
    sinks.py         where events go: a logger, a file, memory, several of them
    journal.py       the last events, for commands that ask later or wait for more
    patient.py       a stream that waits for its reader, but not for ever
    live.py          a job for the person who watches: lines that stay, on a terminal

Import from the modules; this package gathers nothing, so that each costs only itself.
"""
