"""Engines: who runs when. Control plane, no torch."""
