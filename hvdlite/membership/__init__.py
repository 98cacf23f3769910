"""Keeps a job running after the death of a rank: finds the ranks that live, adds replacements.

``elastic`` implements ``core.membership`` for a job whose ranks may change.
"""
