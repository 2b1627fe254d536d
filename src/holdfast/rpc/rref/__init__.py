"""References to values that live at another worker, and their counting.

Layout, in reading order (◦ = pure)
    reply_references.py ◦  references in replies that the caller may never have read
    protocol.py ◦          counts references: decides when a value may be freed
    current_table.py       the table of the current agent
    rref.py                references as users see them
    dropped.py             references that were dropped, gathered
    until_gone.py ◦        how long messages about references are retried
    table.py               the references of one agent
"""
