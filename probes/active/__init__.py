"""Probes that put load on hardware, each in processes of its own; ``collect`` only ever reads.

supervisor/   the agent's side: what may run, with which Python, watched to its end
matmul/, all_reduce/, memory.py, copies.py   ``main()`` of each kind (probes/model/probe_kinds.py has a row for each)
child.py      what passes between the two; endings.py why a process ended
device.py, buffers.py, torch_support.py, phase_meter.py, nvml.py, host.py   what their processes share
"""
