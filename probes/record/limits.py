"""What mltop takes of recordings and captures, which others may have made: memory and time stay bounded.

Where a limit is hit, one line says so and nothing is judged. The reasons:

- A line of a recording is a frame of an agent, and no agent sends larger ones.
- A sample of 8 GPUs has 60 KB: 1 GB is five hours of one node at 1 Hz. The largest that mltop writes itself is a
  capture of 16,384 nodes with three samples each: 3 GB. In memory they are packed and need a fifteenth of that.
- Text of 1 MB can become 200 MB of objects (``[{},{},{},…``), so what would become objects is counted before.
- Dumps are judged together and must all be in memory: 16 rounds of 4,096 ranks have about 600,000 parts.
"""

from __future__ import annotations

from mltop.probes.agent.protocol import MAX_FRAME_BYTES
from mltop.probes.reach.targets.nodesets import MOST_NAME_CHARS, MOST_NODES

MOST_RECORDED_NODES = MOST_NODES
MOST_NODE_CHARS = MOST_NAME_CHARS
MOST_LINE_BYTES = MAX_FRAME_BYTES
MOST_SAMPLE_OBJECTS = 30_000  # of 64 GPUs with their links, ranks, ports and processes: 10,000
MOST_RECORDING_BYTES = 4 << 30  # unpacked, of all recordings in a capture together
MOST_SAMPLES = 1_000_000  # a week of one node at 1 Hz: 604,800
MOST_PACKED_BYTES = 384 << 20  # of samples, as they are kept in memory
MOST_DISORDERED_BYTES = 64 << 20  # of a node whose samples do not stand in the order of time

MOST_FILES = 200_000  # in a folder: 16,384 nodes with 8 ranks each have 131,072
MOST_MANIFEST_BYTES = 32 << 20
MOST_MANIFEST_OBJECTS = 8 * MOST_NODES  # states, and how each node was reached
MOST_VERDICT_BYTES = 256 << 20
MOST_DUMP_BYTES = 64 << 20  # of one process: 100 rounds, or one with the stacks of 64 children as py-spy saw them
MOST_DUMP_OBJECTS = 400_000
MOST_DUMP_PARTS = 1_000_000  # of all: dumps, digests, counters and different stacks' frames
MOST_PROBLEMS = 20  # of a manifest that are said one by one
