"""NVML, read by a child process of the agent with one thread (a hung driver call must not hang the agent).

Parent: ``source`` (what the agent calls), ``worker`` (the child as a process), ``registry`` (the GPUs so far),
``faults`` (from codes to gaps). Child: ``child`` (the loop), ``calls`` (the library), ``device`` (GPUs and handles),
``fields`` (many values with one call), ``reader`` (what of which GPU is read at a poll), ``readers`` (what is read of a
GPU). Both: ``codes``. To add a metric: one row in ``readers/table``.
"""
