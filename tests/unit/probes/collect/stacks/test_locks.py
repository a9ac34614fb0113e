"""Which lock a thread asks for and which it holds, by the lines of its source."""

import textwrap

import pytest

from mltop.probes.collect.stacks.digest import Origin, asked_lock, digest_threads, held_locks
from mltop.probes.model import StackDigest

SOURCE = textwrap.dedent(
    """\
    class Cache:
        def get(self, key):
            with self.lock:
                return self.items[key]

        def fill(self):
            with self.lock, self.other:  # the "with mutex:" of others
                for key in self.keys():
                    # with self.commented:
                    self.items[key] = download(key)
            done()

        def drain(self):
            self.mutex.acquire()
            try:
                time.sleep(9)
            finally:
                self.mutex.release()
            time.sleep(1)

        def read(self):
            with open(path) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                return file.read()
    """
).splitlines()
PATH = "/home/me/p/cache.py"


def read_line(file, number):
    return SOURCE[number - 1] if file == PATH else None


def at(text, file=PATH, function="f"):
    line = next(number for number, source in enumerate(SOURCE, 1) if text in source)
    return {"name": function, "filename": file, "line": line, "module": None}


LIBRARY = {"name": "get", "filename": "/v/lib/python3.11/site-packages/requests/api.py", "line": 9, "module": None}
ACQUIRE = {"name": "Semaphore.acquire", "filename": "/usr/lib/python3.11/threading.py", "line": 9, "module": None}


@pytest.mark.parametrize(
    ("lock", "frames"),
    [
        ("self.lock", [at("with self.lock:")]),
        ("self.lock", [ACQUIRE, at("with self.lock:")]),
        ("self.mutex", [at("self.mutex.acquire()")]),
        ("flock", [at("fcntl.flock")]),
        ("", [LIBRARY, at("with self.lock:")]),  # what it called is something else
        ("", [at("with open(path)")]),
        ("", [at("return self.items")]),
        ("", []),
    ],
)
def test_what_a_thread_asks_for(lock, frames):
    assert asked_lock(frames, read_line) == lock


@pytest.mark.parametrize(
    ("locks", "frames"),
    [
        (["self.lock"], [LIBRARY, at("download(key)")]),
        ([], [at("with self.lock:")]),
        (["self.mutex"], [at("time.sleep(9)")]),
        ([], [at("time.sleep(1)")]),
        ([], [at("done()")]),
        ([], [at("return file.read()")]),
        (["self.lock"], [at("time.sleep(1)"), at("return self.items")]),  # of a caller
    ],
)
def test_what_a_thread_holds(locks, frames):
    assert held_locks(frames, read_line) == locks


def test_both_are_in_the_digests_of_a_process_in_which_somebody_asks():
    threads = [
        {"thread_name": "filler", "os_thread_id": 50, "frames": [LIBRARY, at("download(key)")]},
        {"thread_name": "MainThread", "os_thread_id": 42, "frames": [at("with self.lock:")]},
    ]
    main, filler = digest_threads(threads, Origin(StackDigest(0, 42), 42), True, read_line)
    assert (main.acquires, main.holds) == ("self.lock", [])
    assert (filler.acquires, filler.holds) == ("", ["self.lock"])
    (alone,) = digest_threads(threads[:1], Origin(StackDigest(0, 42), 42), True, read_line)
    assert alone.holds == []
