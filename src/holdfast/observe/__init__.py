"""Observing: what happened, in types, and where it is told.

Layout, in reading order (◦ = pure)
    events.py ◦      what can happen, as frozen dataclasses; each repeats its cause
    recorder.py ◦    the last steps of a machine: dumped, read back, told as a story
    metrics.py ◦     counters, gauges, histograms, and a snapshot of them
    prometheus.py ◦  a snapshot in Prometheus's text format
    sinks.py         where events go: a logger, a file, memory, several of them
    patient.py       a stream that waits for its reader, but not for ever
    live.py          a job for the person who watches: lines that stay, on a terminal

Import from the modules; this package gathers nothing, so that each costs only itself.
"""
