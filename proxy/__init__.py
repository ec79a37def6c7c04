"""The small model that still fails the same way: families and checkpoints it is cut from, its cost, the loop it runs in."""
