"""``torch.distributed`` in plain Python, for Pythons that no torch is installed for: its frames are named like torch's."""

from torch.distributed.distributed_c10d import all_reduce, init_process_group

__all__ = ["all_reduce", "init_process_group"]
