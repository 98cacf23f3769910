"""``mpirun -n 2 hvdlite-bench``: how fast hvdlite is on this machine, and how near to its limits.

``cases`` says what is measured, ``works`` does it through a ``library``, ``measure`` times it on
all ranks, ``figures`` computes, ``report`` and ``plots`` show. None of these but ``cli`` needs
hvdlite's C library: ``benchmarks/`` measures other libraries with the same code.
"""
