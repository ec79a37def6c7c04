"""Plans, builds, and runs the smallest model that still fails the same way."""
