"""Passive readers of one node, one source each: NVML, ranks, host, stacks. They import only model, paths and spawn."""
