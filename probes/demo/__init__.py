"""`mltop demo`: a real hanging job on this machine's CPU, with simulated GPUs and nodes around it."""
