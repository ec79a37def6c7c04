"""Compares a run with one that went well (`analyze --against`): docs/against.md."""

from faultproxy.analyzer.against.compare import Comparison, Difference, compare

__all__ = ["Comparison", "Difference", "compare"]
