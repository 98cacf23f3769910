"""Shows what a job does, or did before it failed, from flight recorders and timelines.

Flight recorders contain each rank's last operations: ``memory`` reads those of this host, ``live``
combines several, ``report`` writes the report of a failure, ``top`` shows a job in the terminal.
For ``cli`` (hvdlite-report) ``traces`` reads timelines and aligns their clocks, ``steps`` finds how
steps spend time, ``page`` draws it. ``counts`` has a rank's counters. No module imports MPI.
"""
