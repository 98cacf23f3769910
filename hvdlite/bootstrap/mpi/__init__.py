"""How ranks meet over MPI. The modules here call MPI only by the functions of core/mpi.py.

mpi4py initializes MPI at its import, unless ``mpi4py.rc.initialize`` is False; a script may also
call ``MPI.Init_thread()`` and ``MPI.Finalize()`` itself. Otherwise ``init()`` initializes MPI, and
hvdlite finalizes MPI at Python's exit.

The first init() of an MPI job imports the modules. `import hvdlite` must not import them, because
importing mpi4py initializes MPI. A child process of a rank inherits the rank's launcher variables,
so MPI in the child would wait for a second process with that rank.
"""
