"""The command line.

Layout, in reading order (◦ = pure)
    main.py     the arguments, and one clear line for every error
    exits.py ◦  what the exit codes mean
    store.py    `holdfast store`: serve a store, and use one from a shell
    doctor.py   `holdfast doctor`: check a store's endpoint step by step
"""
