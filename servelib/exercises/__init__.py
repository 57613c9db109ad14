"""Checks that run against a reader's own code, one module a chapter."""
