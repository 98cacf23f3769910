"""hvdlite-report: the timelines of all ranks put together, as one trace and as one page.

``read`` takes the files and aligns their clocks, ``steps`` finds the steps and where their time
goes, ``page`` draws it, ``cli`` is the program. Nothing here imports MPI.
"""
