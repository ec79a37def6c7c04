"""faultproxy: name what failed in a large RL run, and plan the smallest model that fails the same way."""

__version__ = "0.1.0"
