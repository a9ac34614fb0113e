"""Probes that put load on hardware, each in processes of its own; ``collect`` only ever reads.

supervisor/   the agent's side: what may run, with which Python, watched to its end
matmul/, all_reduce/, transfers.py (memory and copies)   ``main()`` of each kind (a row of probes/model/probe_kinds.py)
child.py      what passes between the two; endings.py why a process ended
device.py, buffers.py, torch_support.py, phase_meter.py, nvml.py, host.py   what their processes share
"""
