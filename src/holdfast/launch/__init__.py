"""Launching: from a configuration and an entry point to results by rank. The node's root.

Layout, in reading order (◦ = pure)
    config.py ◦     LaunchConfig: what to launch, frozen
    entrypoints.py  functions and commands, as people give them
    devices.py      how many workers `auto`, `gpu` and `cpu` mean here
    node_job.py     from a configuration to what this node's agent is to do
    report.py ◦     what went wrong, as text, as JSON and as an exit code
    recordings.py   the last steps of the job's machines, in its report
    report_file.py  the file of the report
    steering.py     what an agent answers its user's commands
    job_metrics.py ◦  what an agent tells of itself, as metrics with labels
    metrics_port.py  a port that Prometheus scrapes
    serving.py      what an agent serves beside its work
    launcher.py     elastic_launch: put the parts together and run
"""

from __future__ import annotations
