"""This machine and others: files, processes, NUMA nodes, the hosts of a job, and their facts."""
