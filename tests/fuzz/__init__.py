"""Attacks by chance: what a node or a file may send, bent in many ways. `python -m tests.fuzz` for longer."""
