"""Changes modules of other packages, such as MXNet and NumPy, when they are imported."""
