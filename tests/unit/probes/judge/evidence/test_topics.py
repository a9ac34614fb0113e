"""What a failure is about, and the advice that fits it."""

from __future__ import annotations

from typing import get_args

import pytest

from mltop.probes.collect.logs.topics import topic_of
from mltop.probes.judge.evidence.blame import First
from mltop.probes.judge.evidence.words import action_for
from mltop.probes.model.evidence.logs import LogEvent, Topic

SAID: tuple[tuple[str, Topic], ...] = (
    (
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x, error: No space left on device (28)",
        "shm",
    ),
    ("OSError: [Errno 28] No space left on device", "disk"),
    ("OSError: [Errno 98] Address already in use", "port"),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "gpu memory"),
    ("RuntimeError: DataLoader worker (pid 262) is killed by signal: Killed. ", "memory"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ecc"),
    ("Loss.cu:240: k: block: [0,0,0], thread: [17,0,0] Assertion `t >= 0 && t < n_classes` failed.", "device assert"),
    ("ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E", "build"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "gpu fault"),
    ("RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)", "communicator"),
    ("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", "hca"),
    ("OSError: [Errno 24] Too many open files", "files"),
    ("RuntimeError: can't start new thread", "threads"),
    ("OSError: [Errno 116] Stale file handle: '/data/ckpt'", "file system"),
    ("socket.gaierror: [Errno -2] Name or service not known", "name"),
    ("RuntimeError: Error(s) in loading state_dict for Llama: size mismatch for lm_head.weight", "checkpoint"),
    ("ModuleNotFoundError: No module named 'apex'", "module"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/index.npy'", "path"),
    ("There are not enough slots available in the system to satisfy the 2", "slots"),
)


@pytest.mark.parametrize(("text", "topic"), SAID)
def test_what_it_is_about(text: str, topic: Topic) -> None:
    assert topic_of("exception", text) == topic
    assert topic_of("peer_exception", text) is None


@pytest.mark.parametrize(
    "text", ["AssertionError: batch", "[TensorRT-LLM][ERROR] Assertion failed: MPI error", "KeyError: 'x'"]
)
def test_what_no_advice_fits(text: str) -> None:
    assert topic_of("exception", text) is None


@pytest.mark.parametrize("topic", get_args(Topic))
def test_every_topic_has_an_example_and_an_advice(topic: Topic) -> None:
    assert topic in dict(map(reversed, SAID))
    event = LogEvent("exception", "job.log", 1, "it failed", topic=topic)
    assert action_for(First("failed", (3,), events=[event]))
    assert action_for(First("no data", events=[event])) == action_for(First("failed", (3,), events=[event]))
    waiting = LogEvent("collective_timeout", "job.log", 1, "timed out")
    assert not action_for(First("no data", events=[waiting]))
