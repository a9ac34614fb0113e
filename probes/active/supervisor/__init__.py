"""The agent's side of a probe: whether it may run, with which Python, and its process watched to its end."""
