"""NVML, read by a child process of the agent with one thread (a hung driver call must not hang the agent).

Parent: source (what the agent calls), worker (one child process), registry (the GPUs known so far), words.
Child: child (the loop), devices (enumeration), fast, slow, static (readers), calls (library and breadcrumb).
"""
