"""What travels to a node that has nothing of ours: stage 1, the bundle of the agent's files, py-spy.

``opening()`` goes to every node; ``file_for`` makes the frames that a node asks for; ``loader()`` imports from what has
been installed. The bundle of one machine type is the same bytes on every computer that has the same versions of mltop,
pynvml and psutil, so its hash names it in the nodes' caches.
"""

from __future__ import annotations

from mltop.probes.reach.bundle.content import loader
from mltop.probes.reach.bundle.files import file_for, py_spy_sha256
from mltop.probes.reach.bundle.opening import opening

__all__ = ["file_for", "loader", "opening", "py_spy_sha256"]
