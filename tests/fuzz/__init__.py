"""Attacks by chance: what a node or a file may send, bent in many ways (`__main__.py` runs them)."""
