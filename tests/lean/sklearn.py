"""Keeps MXNet from importing scikit-learn, which takes it 0.6 of 1.6 seconds; no job here needs it.

`jobs.mpirun` puts this folder first in the path of the jobs' ranks.
"""

raise ModuleNotFoundError("scikit-learn is left out: MXNet imports it where it is", name="sklearn")
