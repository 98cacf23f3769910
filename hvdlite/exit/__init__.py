"""How a process ends: what its script came to, its children, its launcher's end, and MPI's."""
