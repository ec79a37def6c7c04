"""Empty in this version. Planned: plans, builds, and runs the smallest model that still fails the same way."""
