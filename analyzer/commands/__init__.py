"""One command a module: each parses, calls, and prints."""
