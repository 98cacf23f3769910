"""How the ranks of a job meet: over MPI; or at rank 0's port, then by a mesh of connections.

``mpi_world`` and ``socket_world`` are the two implementations of ``core.world``.
"""
