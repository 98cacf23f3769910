"""Facts about this machine and other hosts: files, processes, NUMA nodes, lists of hosts."""
