"""Arguments, results, errors and functions of calls, as bytes.

Layout, in reading order (◦ = pure)
    funcref.py     functions by name
    references.py  the packing and unpacking of references, for the thread that pickles
    stream.py ◦    pickles with large buffers outside
    pickling.py    values as bytes
    errors.py      errors as bytes
"""
