"""``mpirun -n 2 hvdlite-bench``: the speed of hvdlite on this machine, and the machine's limits.

``cases`` lists what to measure, ``works`` does it through a ``library``, ``measure`` times it on
all ranks, ``figures`` computes the columns, ``report`` shows them. Only ``cli`` needs
hvdlite's C library: ``benchmarks/`` measures other libraries with the same code.
"""
