"""`mltop demo`: a real distributed job that hangs, on this machine's CPU, with simulated GPUs (and nodes) around it."""
