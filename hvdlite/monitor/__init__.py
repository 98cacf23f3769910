"""What a job does and did last: flight recorders, and the timelines of all ranks.

``memory`` finds and reads the recorders of this host's processes, ``live`` puts what several hold
together, ``report`` writes what went wrong, ``top`` shows a job in the terminal. ``traces`` reads
timelines and aligns their clocks, ``steps`` finds where their time goes, ``page`` draws it, ``cli``
is hvdlite-report. None of them imports MPI. ``counts`` has what a rank counts of itself.
"""
