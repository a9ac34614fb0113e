"""Filesystems: how full they are, and which of them do not answer.

``source`` is what the host's sample calls: it chooses from /proc/self/mounts and reads NFS's own counters.
statvfs(2) on a dead file server never returns, so it runs in a process of its own, ``child``, which imports nothing of
the others: that keeps its start cheap.
"""
