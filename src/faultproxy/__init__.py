"""faultproxy: name what failed in a large RL or pre-training run, from the logs it left behind."""

__version__ = "0.1.0"
