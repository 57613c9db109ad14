"""HTTP in front of any engine."""
