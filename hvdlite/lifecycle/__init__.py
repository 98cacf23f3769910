"""How a process joins and leaves a job, and how its end is noticed by all who wait for it.

``job`` joins and leaves (init, shutdown, exit). ``script_end`` tells whether the script failed,
``watched`` tells the launcher's agent, ``orphan`` ends a rank whose launcher is gone. Nothing is
imported here: the launcher uses ``watched``, and starts no MPI.
"""
