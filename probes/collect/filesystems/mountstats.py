"""NFS's own counters of each mount. Source: /proc/self/mountstats (net/sunrpc/stats.c, net/sunrpc/xprtsock.c)."""

from __future__ import annotations

# Where in an "xprt:" line the time that requests waited for a free slot is summed up.
_BACKLOG_AT = {"tcp": 9, "rdma": 9, "udp": 6}


def parse(text: str) -> dict[str, dict[str, int]]:
    """By mount point: ``operations``, ``retrans`` (sent again), ``timeouts`` (given up for now) and ``backlog``.

    All grow from the mount on. ``backlog`` sums up, for each request sent, how many were waiting for a slot then.
    """
    found: dict[str, dict[str, int]] = {}
    counters: dict[str, int] = {}
    in_operations = False
    for line in text.splitlines():
        words = line.split()
        if line.startswith("device "):
            counters, in_operations = {}, False
            if "fstype" in words and words[words.index("fstype") + 1 :][:1] in (["nfs"], ["nfs4"]):
                counters = {"operations": 0, "retrans": 0, "timeouts": 0, "backlog": 0}
                found[words[words.index("on") + 1]] = counters
        elif not counters or not words:
            continue
        elif words[0] == "xprt:" and len(words) > 2:
            at = _BACKLOG_AT.get(words[1], len(words)) + 2
            counters["backlog"] += int(words[at]) if at < len(words) else 0
        elif line.strip() == "per-op statistics":
            in_operations = True
        elif in_operations and words[0].endswith(":") and len(words) >= 4:
            operations, sent, timeouts = (int(word) for word in words[1:4])
            counters["operations"] += operations
            counters["retrans"] += max(0, sent - operations)
            counters["timeouts"] += timeouts
    return found
