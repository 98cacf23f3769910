"""Settings of all Python tests. Those under parallel/ run in MPI jobs and have their own."""
