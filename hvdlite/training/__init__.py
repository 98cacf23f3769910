"""Grouping, reduction and compression of gradients, used by the adapters of all frameworks."""
