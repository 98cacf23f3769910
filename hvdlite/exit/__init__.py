"""How a process ends: its script's result, its children, the end of its launcher and of MPI."""
