"""Shows what a job does, or did before it failed, from flight recorders and timelines.

A flight recorder has the last operations of one rank. ``memory`` reads this host's recorders,
``live`` combines several, ``report`` writes the report of a failure, ``top`` shows a job in the
terminal. For ``cli`` (hvdlite-report) ``traces`` reads timelines and aligns their clocks, ``steps``
finds how steps spend time, ``page`` draws the result. ``counts`` has a rank's counters. No module
imports MPI.
"""
