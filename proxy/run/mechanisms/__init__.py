"""How faults act on the loop: one function a mechanism, a module a place."""
