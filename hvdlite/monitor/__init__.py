"""Shows what a job does and did last: flight recorders, and the timelines of all ranks.

``memory`` finds and reads the recorders of this host's processes, ``live`` combines several
recorders, ``report`` writes the report of a failure, ``top`` shows a job in the terminal.
``traces`` reads timelines and aligns their clocks, ``steps`` finds where time goes, ``page`` draws
it, ``cli`` is hvdlite-report. ``counts`` has a rank's own counters. No module imports MPI.
"""
