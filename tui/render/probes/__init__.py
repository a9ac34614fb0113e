"""Probes: the question, what happens, results and what they are compared with."""
