"""The command line.

Layout, in reading order (◦ = pure)
    exits.py ◦      what the exit codes mean
    output.py       what is printed, and what happens if it cannot be
    arguments.py    what the commands' arguments have in common
    main.py         runs one command; one clear line for every error
    run_flags.py    the flags of `holdfast run`, as data
    run_resolve.py  from its flags to a configuration and an entry point
    run_view.py     from its agent's status to what a person is shown
    run_end.py      the last line of `holdfast run`
    run_on.py       where its nodes come from: a launcher, or hosts by ssh
    run.py          `holdfast run`: launch a job, or this node of one
    hosted.py       `holdfast run` on a host to which it was sent by ssh
    job_access.py   how commands reach the jobs of this user
    job_text.py     jobs as text
    steer.py        `holdfast ps`, `status`, `stop`, `events`: see and steer jobs
    stack.py        `holdfast stack`: where workers are
    log_lines.py    lines of log files
    logs.py         `holdfast logs`: what workers wrote
    page.py         `holdfast page`: serve a page about a job
    store.py        `holdfast store`: serve a store, and use one from a shell
    doctor.py       `holdfast doctor`: check a store's endpoint step by step
    replay.py       `holdfast replay`: run the recorded steps of a failed job again
"""
