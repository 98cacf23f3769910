"""How the ranks of a job meet: over MPI, or at rank 0's port.

``mpi.world`` and ``socket_world`` have the two implementations of ``core.world``.
"""
