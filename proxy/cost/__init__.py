"""What a model costs to train by reinforcement learning: parameters, memory, work, devices, device-hours a step.

Closed forms over a `config.json`; nothing is loaded. docs/cost.md has what they are checked against.
"""
