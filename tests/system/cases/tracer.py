"""Holds a process under ptrace, stopped, as a debugger does: ``tracer.py PID``. Prints "ready" then."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PTRACE_ATTACH = 16  # linux/ptrace.h

libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
if libc.ptrace(PTRACE_ATTACH, pid, 0, 0) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0)
print("ready", flush=True)
signal.pause()
