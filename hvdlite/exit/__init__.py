"""How a process ends: how its script ended, its children, the end of its launcher."""
