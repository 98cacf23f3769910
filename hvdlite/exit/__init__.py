"""How a process ends: the end of its script, its forked children, the end of its launcher."""
