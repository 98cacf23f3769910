"""``hvdliterun``, which starts a job on many hosts, watches over it and ends it as a whole.

    cli       what the user typed: options, config      -> a job
    backends/  one a file: local, ssh, mpi, slurm, ...   a job -> the command of an existing backend
    watch     runs that command, hears every rank       (channel, output, failure)
    agent     what the backend starts for each rank; it starts the user's program and looks after it

A backend (mpirun, srun, qsub, ...) places the processes and wires them up. What backends do not do
is the work of this package: to say before training starts what is wrong with a host, to tell ranks
apart on the screen, to name the rank that failed, and to leave nothing behind. Each agent holds one
connection to the launcher for that; it carries output and exit codes, never training data.

Nothing in here imports MPI: an agent must leave that to the program it starts.
"""
