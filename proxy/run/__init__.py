"""Runs a small model through a real training loop, healthy or with one known fault, and records everything."""
