"""What changes MXNet and NumPy when they are imported."""
