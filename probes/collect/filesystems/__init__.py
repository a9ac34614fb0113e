"""Filesystems: how full they are, and which of them do not answer.

``source`` is what the host's sample calls; ``mounts`` chooses from /proc/self/mounts, ``mountstats`` has NFS's own
counters. statvfs(2) on a dead file server never returns, so it runs in a process of its own: ``worker`` is that process
seen from here, ``child`` what runs in it. The child imports nothing of the others, which keeps its start cheap.
"""
