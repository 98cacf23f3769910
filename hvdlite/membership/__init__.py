"""Which ranks live and which join. After a death the others go on, with or without replacements.

``fixed`` and ``elastic`` are the two implementations of ``core.membership``.
"""
