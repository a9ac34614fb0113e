"""Captures and recordings on disk. Files are 0600 and appear whole or not at all.

A capture is a directory (0700):
  manifest.json             what it is, when, of which nodes, whether it is complete, what is missing
  verdict.json verdict.txt  the same object as `mltop stacks --json`, and as text
  samples/NODE.jsonl.gz     a recording: a header line, then one Sample per line
  stacks/NODE/rank-R-pid-P.json   every dump of that rank: counters, digests, py-spy's JSON with integer locals only
No environment variable's value is in it.
"""

from mltop.probes.record.decoding import BadRecording
from mltop.probes.record.reading import Capture, read_capture, read_raw
from mltop.probes.record.recordings import Recording, header_line, read_recording, recording
from mltop.probes.record.stored import NodeSamples, StoredSamples
from mltop.probes.record.writing import CaptureWriter, safe_name

__all__ = [
    "BadRecording",
    "Capture",
    "CaptureWriter",
    "NodeSamples",
    "Recording",
    "StoredSamples",
    "header_line",
    "read_capture",
    "read_raw",
    "read_recording",
    "recording",
    "safe_name",
]
