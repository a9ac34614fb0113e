"""What can be measured. Imports nothing: the command line asks before it loads anything."""

from __future__ import annotations

KINDS = ("matmul", "all-reduce", "memory", "copies", "pairs")
DTYPES = ("bf16", "fp8", "fp16", "tf32", "fp32")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
