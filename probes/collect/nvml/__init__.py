"""NVML, read by a child process of the agent with one thread (a hung driver call must not hang the agent).

Parent: source (what the agent calls), worker (one child process), registry and known (the GPUs so far), words.
Child: child (the loop), devices (enumeration), calls (library and breadcrumb), reader (what of which GPU is read at a
poll; schedule), fields (many values with one call). What is read: fast (every poll), activity (GPM), health (ecc,
remap, pcie), nvlink, processes, mig, limits, fabric, modes, static. rates and throttle make rates of counters; events
are Xids.
"""
