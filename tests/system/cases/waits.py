"""A small real job (torch, gloo, CPU) whose ranks wait in ways of their own: they poll, call C, take locks, send on.

Run by launch.py as ``waits.py CASE DIRECTORY CULPRIT``; RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are set.
It marks what it has reached with empty files in DIRECTORY/events.
"""

from __future__ import annotations

import asyncio
import ctypes
import datetime
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

CASE = sys.argv[1]
DIRECTORY = Path(sys.argv[2])
CULPRIT = int(sys.argv[3])
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
IS_CULPRIT = RANK == CULPRIT
DONE = DIRECTORY / "done"  # never made


def mark(event: str) -> None:
    (DIRECTORY / "events" / event).touch()


def read_blocked() -> None:
    """The culprit: it reads what nobody writes."""
    path = DIRECTORY / f"shard{RANK}.fifo"
    os.mkfifo(path)
    mark("hung")
    with path.open("rb") as shard:
        shard.read()


def wait_for_marker() -> None:
    while not os.path.exists(DONE):
        time.sleep(0.1)


def take_baton() -> None:
    from torch.utils.file_baton import FileBaton

    lock = DIRECTORY / "lock"
    lock.touch()
    FileBaton(str(lock)).wait()


def take_file_lock() -> None:
    import filelock

    if not os.fork():  # whoever died and left it
        with filelock.FileLock(DIRECTORY / "file.lock"):
            mark(f"locked.{RANK}")
            time.sleep(3600)
    while not any((DIRECTORY / "events" / f"locked.{rank}").exists() for rank in range(WORLD_SIZE)):
        time.sleep(0.01)
    with filelock.FileLock(DIRECTORY / "file.lock"):
        return


def poll_work() -> None:
    work = dist.all_reduce(torch.ones(4), async_op=True)
    while not work.is_completed():
        time.sleep(0.01)


def sleepy_steps() -> None:
    """Healthy: its stack and its locals are the same in nearly every look."""
    while True:
        time.sleep(0.3)
        dist.all_reduce(torch.ones(4))
        mark(f"moving.{RANK}")


def crash() -> None:
    """The culprit dies of a signal, and the others of their lost connections."""
    for step in range(100_000):
        if step == 3:
            mark(f"waiting.{RANK}")
            if IS_CULPRIT:
                mark("hung")
                os.kill(os.getpid(), signal.SIGSEGV)
        dist.all_reduce(torch.ones(4))


def native_wait() -> None:
    """As an extension's own collective: a call from the user's line into C, on a semaphore that nobody posts."""
    libc = ctypes.CDLL(None)
    semaphore = ctypes.create_string_buffer(64)
    libc.sem_init(semaphore, 0, 0)
    libc.sem_wait(semaphore)


class Metrics:
    """Pushed by the main thread and by one of its own, which stands in a write that nobody reads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def push_blocked(self) -> None:
        with self.lock:
            read_blocked()

    def push(self) -> None:
        with self.lock:
            return


def lock_held_by_a_thread() -> None:
    metrics = Metrics()
    threading.Thread(target=metrics.push_blocked, name="metrics-pusher", daemon=True).start()
    while not (DIRECTORY / "events" / "hung").exists():
        time.sleep(0.01)
    metrics.push()


class Blocked(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        read_blocked()


def training_thread() -> None:
    """As Ray Train does it: the main thread only looks whether the one that trains has ended."""
    worker = threading.Thread(target=train_in_thread, name="training", daemon=True)
    worker.start()
    while worker.is_alive():
        time.sleep(1 / 60)


def train_in_thread() -> None:
    for step in range(100_000):
        if step == 3:
            if IS_CULPRIT:
                read_blocked()
            mark(f"waiting.{RANK}")
        dist.all_reduce(torch.ones(4))


def log_handler_that_blocks() -> None:
    logging.getLogger().addHandler(Blocked())
    threading.Thread(target=logging.warning, args=("loss",), name="logger-thread", daemon=True).start()
    while not (DIRECTORY / "events" / "hung").exists():
        time.sleep(0.01)
    logging.warning("step")


def pipeline(stall: bool) -> None:
    """Activations go from rank to rank; the culprit reads its data for ever and passes nothing on."""
    for step in range(100_000):
        if step == 3:
            if IS_CULPRIT and stall:
                read_blocked()
            mark(f"waiting.{RANK}")
        activation = torch.ones(1 << 20)
        if RANK > 0:
            dist.recv(activation, src=RANK - 1)
        if RANK < WORLD_SIZE - 1:
            dist.send(activation, dst=RANK + 1)


def deadlocked_pair() -> None:
    """The culprit and the rank before it both receive first; the others wait for these."""
    activation = torch.ones(1 << 20)
    mark(f"waiting.{RANK}")
    if RANK == CULPRIT:
        mark("hung")
        dist.recv(activation, src=CULPRIT - 1)
    dist.recv(activation, src=min(RANK + 1, CULPRIT) if RANK < CULPRIT else RANK - 1)


def crossed_receives() -> None:
    """The culprit and the rank before it both receive before they send."""
    mark(f"waiting.{RANK}")
    if IS_CULPRIT:
        mark("hung")
    if RANK in (CULPRIT - 1, CULPRIT):
        swap(torch.ones(4), 2 * CULPRIT - 1 - RANK)
    dist.barrier()


def early_receive() -> None:
    """The rank before the culprit receives what the culprit sends after a collective of both."""
    mark(f"waiting.{RANK}")
    if RANK == CULPRIT - 1:
        dist.recv(torch.ones(4), src=CULPRIT)
    if IS_CULPRIT:
        mark("hung")
    dist.all_reduce(torch.ones(4))


async def poll_in_loop() -> None:
    for step in range(100_000):
        if step == 3:
            mark("hung" if IS_CULPRIT else f"waiting.{RANK}")
        if step == 3 and IS_CULPRIT:
            await asyncio.Event().wait()
        work = dist.all_reduce(torch.ones(4), async_op=True)
        while not work.is_completed():
            await asyncio.sleep(0.01)


def swap(activation: torch.Tensor, peer: int) -> None:
    received = dist.irecv(torch.empty(4), src=peer)
    received.wait()
    dist.isend(activation, dst=peer).wait()


async def train_in_loop() -> None:
    batches: asyncio.Queue[torch.Tensor] = asyncio.Queue()
    for step in range(100_000):
        if step == 3 and IS_CULPRIT:
            mark("hung")
        else:
            batches.put_nowait(torch.ones(4))
        batch = await batches.get()
        if step == 3:
            mark(f"waiting.{RANK}")
        dist.all_reduce(batch)


async def serve() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    mark("hung")
    await server.serve_forever()


def server_in_loop() -> None:
    asyncio.run(serve()) if IS_CULPRIT else follow()


def follow() -> None:
    mark(f"waiting.{RANK}")
    dist.all_reduce(torch.ones(4))


def tensor_and_data_parallel() -> None:
    """Rows of two ranks share a tensor, columns a gradient; the culprit's row waits for it, then its column."""
    rows = [dist.new_group([first, first + 1]) for first in range(0, WORLD_SIZE, 2)]
    columns = [dist.new_group(list(range(at, WORLD_SIZE, 2))) for at in range(2)]
    for step in range(100_000):
        if step == 3:
            mark(f"waiting.{RANK}")
        dist.all_reduce(torch.ones(4), group=rows[RANK // 2])  # tensor parallel
        if step == 3 and IS_CULPRIT:
            read_blocked()
        dist.all_reduce(torch.ones(4), group=columns[RANK % 2])  # data parallel


EVERYONE = {
    "stale_baton": take_baton,
    "stale_file_lock": take_file_lock,
    "marker_of_nobody": wait_for_marker,
}
WAITERS = {"marker": wait_for_marker, "work_poll": poll_work, "native_wait": native_wait}


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=10))
    torch.set_num_threads(1)
    dist.barrier()
    if CASE in EVERYONE:
        mark(f"waiting.{RANK}")
        EVERYONE[CASE]()
    elif CASE in WAITERS and not IS_CULPRIT:
        mark(f"waiting.{RANK}")
        WAITERS[CASE]()
    elif CASE in WAITERS:
        read_blocked()
    elif CASE in ("thread_lock", "log_lock"):
        mark(f"waiting.{RANK}")
        if IS_CULPRIT:
            {"thread_lock": lock_held_by_a_thread, "log_lock": log_handler_that_blocks}[CASE]()
        dist.barrier()
    else:
        {
            "sleepy_steps": sleepy_steps,
            "crash": crash,
            "training_thread": training_thread,
            "pipeline": lambda: pipeline(True),
            "deadlocked_pair": deadlocked_pair,
            "crossed_receives": crossed_receives,
            "early_receive": early_receive,
            "polling_loops": lambda: asyncio.run(poll_in_loop()),
            "trainer_in_loop": lambda: asyncio.run(train_in_loop()),
            "server_in_loop": server_in_loop,
            "tensor_data": tensor_and_data_parallel,
        }[CASE]()


if __name__ == "__main__":
    main()
