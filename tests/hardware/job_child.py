"""One rank of a small training job, in any Python with torch: `job_child.py CASE BACKEND DEVICE DIRECTORY SECONDS`.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment, as under torchrun. Cases: healthy (steps until it
is ended), kernel, stream and item (a kernel that does not end, and a wait for the device, for its stream, for a value),
alone (an all-reduce of one rank behind such a kernel), dataloader (a worker that never answers), collective and gloo
(the last rank never enters the all-reduce). BACKEND: nccl, gloo or "" for a rank alone. It is ended after SECONDS,
whatever it does.

JOB_TIMEOUT_S: of the collective that is never entered (default: an hour). A rank whose all-reduce fails leaves its
flight recorder's dump, which only NCCL's watchdog writes by itself.

In DIRECTORY: steps.RANK (the end of each step, ns of CLOCK_MONOTONIC, one a line) and, once the rank stands where it
will stand for good or has done its first steps, ready.RANK.
"""

import ctypes
import datetime
import os
import resource
import signal
import sys
import time

HANG_STEP = 3
SPINNING = ("kernel", "stream", "item", "alone")  # behind a kernel that does not end
SIDE = 2048
GEMMS = 10  # a step: a millisecond or so
KERNEL_CYCLES = 10**9  # half a second each: screens' GPUs end kernels that run for several
KERNELS = 600  # fewer than may be queued at once
PR_SET_PDEATHSIG, PR_SET_PTRACER = 1, 0x59616D61  # prctl(2)
ANYBODY = ctypes.c_ulong(-1)


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def let_py_spy_look():
    """Also where kernel.yama.ptrace_scope is 1: nothing is lost with this process. Without Yama it has no effect."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)


class Job:
    def __init__(self, words):
        self.case, self.backend, self.device, self.directory, _ = words
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.steps = os.open(os.path.join(self.directory, f"steps.{self.rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def ready(self):
        with open(os.path.join(self.directory, f"ready.{self.rank}"), "w"):
            pass

    def step(self):
        os.write(self.steps, b"%d\n" % time.monotonic_ns())


class Samples:
    """What a DataLoader takes for a dataset: rows, of which one is never read."""

    def __init__(self, job):
        self.job = job

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == HANG_STEP:
            read_blocked(self.job)
        return index


def read_blocked(job):
    end_with_parent()
    let_py_spy_look()
    job.ready()
    while True:
        time.sleep(3600)


def never_enters(job):
    job.ready()
    while True:
        time.sleep(3600)


def spin_on_gpu(torch, job):
    """Behind these kernels whatever waits for the GPU waits for minutes."""
    for _ in range(KERNELS):
        torch.cuda._sleep(KERNEL_CYCLES)
    job.ready()


def limit(torch):
    """The next collective's time: until here a rank may be as late as the machine is slow."""
    if "JOB_TIMEOUT_S" in os.environ:
        seconds = float(os.environ["JOB_TIMEOUT_S"])
        torch.distributed.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds))


def all_reduce(torch, job, gradients):
    try:
        torch.distributed.all_reduce(gradients)
    except RuntimeError:
        from torch._C import _distributed_c10d

        dump = getattr(_distributed_c10d, "_dump_fr_trace", None)
        if job.backend == "gloo" and dump is not None:
            with open(os.path.join(job.directory, f"dump.{job.rank}"), "wb") as file:
                file.write(dump())
        raise


class Work:
    """One step's: GEMMs, and waiting for them."""

    def __init__(self, torch, job):
        self.torch, self.on_gpu = torch, job.device == "cuda"
        side = SIDE if self.on_gpu else 64
        self.a, self.b, self.c = (
            torch.empty(side, side, device=job.device, dtype=torch.bfloat16 if self.on_gpu else torch.float32)
            for _ in range(3)
        )

    def queue(self):
        for _ in range(GEMMS):
            self.torch.mm(self.a, self.b, out=self.c)

    def wait(self):
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def wait_for_stream(self):
        self.torch.cuda.current_stream().synchronize()

    def take_value(self):
        return self.c.view(-1)[:1].item()


def train(torch, job, rows):
    work = Work(torch, job)
    gradients = torch.empty(1024, device=job.device, dtype=torch.float32) if job.backend else None
    wait = {"stream": work.wait_for_stream, "item": work.take_value}.get(job.case, work.wait)
    for step in rows:
        work.queue()
        if job.case in SPINNING and step == HANG_STEP:
            spin_on_gpu(torch, job)
        if job.backend:
            if step == HANG_STEP and job.world_size > 1 and job.rank == job.world_size - 1:
                never_enters(job)
            if step == HANG_STEP:
                limit(torch)
                job.ready()
            all_reduce(torch, job, gradients)
        wait()
        job.step()
        if job.case == "healthy" and step == HANG_STEP:
            job.ready()


def rows_of(torch, job):
    if job.case == "dataloader":
        from torch.utils.data import DataLoader

        return DataLoader(Samples(job), batch_size=None, num_workers=1, multiprocessing_context="fork")
    return range(10**9)


def main(words):
    end_with_parent()
    let_py_spy_look()
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # core(5): none is written, to no file and to no pipe
    signal.alarm(int(float(words[-1])) + 1)  # its default action ends also what stands in the driver's library
    job = Job(words)
    import torch

    if job.device == "cuda":
        torch.cuda.init()
    if job.backend:
        import torch.distributed as dist

        dist.init_process_group(job.backend, timeout=datetime.timedelta(hours=1))
    train(torch, job, rows_of(torch, job))


if __name__ == "__main__":
    main(sys.argv[1:])
