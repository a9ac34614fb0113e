"""Whose line a stack is told by: the user's first, what it called in brackets."""

from __future__ import annotations

import pytest

from mltop.probes.judge.hang.frames import called_from, is_idle_worker, leaf_note, waits_for_child, where
from mltop.probes.model import Frame, StackDigest

C10D = "torch/distributed/distributed_c10d.py"


def library(function: str, file: str, line: int) -> Frame:
    return Frame(function, file, line)


def user(function: str, file: str, line: int) -> Frame:
    return Frame(function, file, line, user=True)


def digest(*frames: Frame, waiting_in: str | None = None, wchan: str | None = None) -> StackDigest:
    return StackDigest(0, 1, frames=list(frames), waiting_in=waiting_in, wchan=wchan)


TRAIN = user("train", "job/train.py", 60)
GZIP = (library("GzipFile.__init__", "gzip.py", 174), library("open", "gzip.py", 57))
HF = library("Trainer.train", "transformers/trainer.py", 2206)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (
            "train (job/train.py:60) [all_reduce]",
            digest(library("all_reduce", C10D, 2900), TRAIN, waiting_in="all_reduce"),
        ),
        ("train (job/train.py:60)", digest(TRAIN)),
        ("train (job/train.py:60) [work.wait]", digest(TRAIN, waiting_in="work.wait")),
        ("train (job/train.py:60) [open, gzip.py:57]", digest(*GZIP, TRAIN)),
        # what carries a wait says less than who waits
        (
            "train (job/train.py:60) [request, urllib3/connectionpool.py:787]",
            digest(
                library("SSLSocket.read", "ssl.py", 1099),
                library("HTTPResponse.begin", "http/client.py", 311),
                library("HTTPConnectionPool.urlopen", "urllib3/connectionpool.py", 534),
                library("HTTPConnectionPool.request", "urllib3/connectionpool.py", 787),
                library("get", "requests/api.py", 73),
                TRAIN,
            ),
        ),
        (
            "train (job/train.py:60) [join, threading.py:1119]",
            digest(library("Thread.join", "threading.py", 1119), TRAIN),
        ),
        # native frames come and go
        ("train (job/train.py:60)", digest(library("read", "libc.so.6", 0), TRAIN)),
        # a callback of the user's, called by a library that the user called
        (
            "Log.on_step (job/log.py:9) [open, gzip.py:57]",
            digest(*GZIP, user("Log.on_step", "job/log.py", 9), HF, TRAIN),
        ),
        # a training program that is installed like a library: nothing is marked
        ("train (axolotl/cli.py:3) [open, gzip.py:57]", digest(*GZIP, library("train", "axolotl/cli.py", 3))),
        ("all_reduce (torch/distributed/distributed_c10d.py:2900)", digest(library("all_reduce", C10D, 2900))),
        ("read (libc.so.6)", digest(library("read", "libc.so.6", 0))),
        ("nfs_wait", digest(wchan="nfs_wait")),
        ("unknown", digest()),
    ],
)
def test_where(text, made):
    assert where(made) == text


def test_a_library_that_no_mark_knows_is_told_as_before():
    """Captures of older versions: the leaf-most frame that is neither torch's nor the standard library's."""
    old = digest(library("all_reduce", C10D, 9), library("train", "job/train.py", 60), waiting_in="all_reduce")
    assert (where(old), called_from(old)) == ("train (job/train.py:60) [all_reduce]", "train (job/train.py:60)")


def test_a_users_folder_that_is_named_like_a_library_is_the_users():
    assert where(digest(*GZIP, user("main", "torch/train.py", 4))) == "main (torch/train.py:4) [open, gzip.py:57]"


def test_the_leaf_is_told_when_where_does_not_say_it():
    assert leaf_note(digest(*GZIP, TRAIN)) == ", in GzipFile.__init__ (gzip.py:174)"
    assert leaf_note(digest(GZIP[1], TRAIN)) == ""
    assert leaf_note(digest(TRAIN)) == ""


@pytest.mark.parametrize("package", ["multiprocessing", "multiprocess", "billiard"])
def test_multiprocessing_by_any_name(package):
    poll = [library("wait", f"{package}/connection.py", 930), library("Pool.map", f"{package}/pool.py", 367)]
    assert waits_for_child(digest(*poll, TRAIN))
    idle = [library("Connection.recv", f"{package}/connection.py", 250), library("worker", f"{package}/pool.py", 114)]
    assert is_idle_worker(digest(*idle))
    assert not is_idle_worker(digest(user("tokenize", "job/data.py", 3), *idle))


@pytest.mark.parametrize("loky", ["joblib/externals/loky", "loky"])
def test_jobs_of_joblib(loky):
    assert waits_for_child(digest(library("_ExecutorManagerThread.wait", f"{loky}/process_executor.py", 560), TRAIN))
    assert is_idle_worker(digest(library("_process_worker", f"{loky}/process_executor.py", 428)))
