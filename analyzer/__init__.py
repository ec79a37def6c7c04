"""Reads what a failed run left behind, judges it, and reports. Data flows one way: trace, ingest, views, rules, diagnose, report."""
