"""Plans of the smallest model that can still fail the same way, from a diagnosis or by hand. docs/plan.md has the rules.

Torch-free, and no weights are read: a plan is arithmetic over a `config.json`.
"""
