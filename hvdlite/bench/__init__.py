"""``mpirun -n 2 hvdlite-bench``: the speed of hvdlite on this machine, and the machine's limits.

``cases`` lists the measurements, ``works`` does a case's work through a ``library``, ``measure``
times the work on all ranks, ``figures`` computes the columns, ``report`` shows the columns. Only
``cli`` needs hvdlite's C library: ``benchmarks/`` measures other libraries with the same code.
"""
