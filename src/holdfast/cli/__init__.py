"""The command line.

Layout, in reading order (◦ = pure)
    main.py         runs one command; one clear line for every error
    arguments.py    what the commands' arguments have in common
    exits.py ◦      what the exit codes mean
    output.py       what is printed, and what happens if it cannot be
    run.py          `holdfast run`: launch a job, or this node of one
    run_flags.py    its flags, as data
    run_resolve.py  from its flags to a configuration and an entry point
    run_view.py     from its agent's status to what a person is shown
    store.py        `holdfast store`: serve a store, and use one from a shell
    doctor.py       `holdfast doctor`: check a store's endpoint step by step
"""
