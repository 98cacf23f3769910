"""Keeps MXNet from importing SciPy: see sklearn.py."""

raise ModuleNotFoundError("SciPy is left out: MXNet imports it where it is", name="scipy")
