"""Records that a job itself keeps of what it does: torch's flight recorder, error files, NCCL's RAS.

Whoever wrote a file is not trusted: it is read within bounds, and nothing in it is ever run.
"""
