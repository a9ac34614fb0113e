"""From what probes measured to words: what the hardware should give, who is slow, and why. Pure functions."""
