"""Grouping, reduction and compression of gradients, for the bindings of all frameworks."""
