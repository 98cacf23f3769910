"""``hvdliterun`` starts a job on many hosts, watches it and ends it as a whole.

    cli        turns options and the config file into a job        (options, job_of_options)
    backends/  turns the job into the command of local, ssh, mpi, slurm, ...
    watch      runs that command and listens to every rank       (channel, output, failure)
    agent      runs and watches the user's program of one rank   (supervision)

A backend (mpirun, srun, qsub, ...) places the processes and connects them. This package does the
rest: it reports a wrong host before training starts, labels the output of each rank, names the rank
that failed, and removes what a job leaves behind. Each agent has one connection to the launcher,
for output and exit codes, never for training data.

Nothing here imports MPI; only the program that an agent starts does.
"""
