"""What calls take and return, as bytes: arguments, results, errors and functions.

Layout, in reading order
    funcref.py     functions by name
    references.py  the packing and unpacking of references, for the thread that pickles
    pickling.py    values as bytes
    errors.py      errors as bytes
"""
