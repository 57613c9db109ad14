"""Caches of keys and values. Data plane."""
