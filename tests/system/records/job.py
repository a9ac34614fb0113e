"""A rank of a job on gloo in which all but the last wait in an all_reduce; each leaves its flight record where torch
looks for the place, as a job's own watchdog would have it do.
"""

import datetime
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace


def leave_record() -> None:
    Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{dist.get_rank()}.part").write_bytes(_dump_fr_trace())
    Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{dist.get_rank()}.part").rename(
        f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{dist.get_rank()}"
    )


def stay_away() -> None:
    time.sleep(3)  # so much later than the others' last launch that it is no rank that is merely late
    leave_record()
    time.sleep(600)


dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
gradients = torch.zeros(8)
for _ in range(3):
    dist.all_reduce(gradients)
if dist.get_rank() == dist.get_world_size() - 1:
    stay_away()
work = dist.all_reduce(gradients, async_op=True)
leave_record()
work.wait()
