"""Which limit an error speaks of."""

from __future__ import annotations

import errno

import pytest

from mltop.probes.system.limits import limit_words


def caused(error: BaseException) -> BaseException:
    """Another error that came of it."""
    try:
        try:
            raise error
        except BaseException as first:
            raise ValueError("another") from first
    except ValueError as second:
        return second


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "open no more files (ulimit -n "),
        (OSError(errno.ENFILE, "Too many open files in system"), "fs.file-max"),
        (MemoryError(), "no more memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "no more memory"),
        (
            BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
            "may not start another process or thread (",
        ),
        (RuntimeError("can't start new thread"), "may not start another process or thread ("),
        (OSError(errno.ENOENT, "No such file"), ""),
        (RuntimeError("another"), ""),
    ],
)
def test_words(error: BaseException, words: str) -> None:
    for each in (error, caused(error)):
        said = limit_words(each)
        assert words in said and bool(said) == bool(words)
