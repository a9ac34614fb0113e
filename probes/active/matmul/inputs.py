"""Operands of GEMMs: seeded random numbers, uploaded once and verified, as views of one buffer each.

Random, not constant: zeros need so little power that an A100 gave 295 TFLOPS with them and 257 with random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mltop.probes.active.matmul.corruption import checksum
from mltop.probes.active.matmul.device import Device
from mltop.probes.active.matmul.gemm import FORMATS, Operands
from mltop.probes.active.matmul.shapes import Shape

_BLOCK = (1 << 24) - 3  # numbers; larger buffers repeat it, not aligned with any row


class Inputs:
    """A block of random numbers on the device. ``intact``: what came back from it is what was sent."""

    def __init__(self, device: Device, dtype: str, seed: int, most: int) -> None:
        """``most``: numbers that one operand needs at most."""
        torch = device.torch
        self._device = device
        self._dtype = dtype
        self._format = getattr(torch, FORMATS[dtype])
        generator = torch.Generator().manual_seed(seed)
        sent = torch.randn(min(most, _BLOCK), generator=generator).to(self._format)
        self._block = sent.to(device.where, copy=True)
        self.intact = checksum(torch, self._block.to("cpu", copy=True)) == checksum(torch, sent)

    def buffers(self, shapes: Sequence[Shape]) -> Buffers:
        """That hold each of these shapes in turn."""
        a = self._filled(max(shape.m * shape.k for shape in shapes), 0)
        b = self._filled(max(shape.k * shape.n for shape in shapes), self._block.numel() // 2)
        outputs = max(shape.m * shape.n for shape in shapes)
        kind = self._device.torch.bfloat16 if self._dtype == "fp8" else self._format
        c = self._device.torch.empty(outputs, dtype=kind, device=self._device.where)
        fresh = self._filled(outputs, 1).to(kind) if self._device.flushes else None
        return Buffers(self._device, self._dtype, a=a, b=b, c=c, fresh=fresh)

    def _filled(self, count: int, start: int) -> Any:
        """``count`` numbers, the first of them at ``start`` of the block."""
        buffer = self._device.torch.empty(count, dtype=self._format, device=self._device.where)
        done, block = 0, self._block
        while done < count:
            part = block[start : start + count - done]
            buffer[done : done + part.numel()].copy_(part)
            done, start = done + part.numel(), 0
        return buffer


class Buffers:
    def __init__(self, device: Device, dtype: str, *, a: Any, b: Any, c: Any, fresh: Any) -> None:
        self._a, self._b, self._c, self._fresh = a, b, c, fresh
        # The layout of mamf-finder on GPUs (of training, too: weights are N x K); fp8 has no other.
        self._column_major = device.flushes or dtype == "fp8"
        self._scale = device.torch.ones((), device=device.where) if dtype == "fp8" else None

    def operands(self, shape: Shape) -> Operands:
        m, n, k = shape
        a = self._a[: m * k].view(m, k)
        b = self._b[: k * n].view(n, k).t() if self._column_major else self._b[: k * n].view(k, n)
        fresh = None if self._fresh is None else self._fresh[: m * n].view(m, n)
        return Operands(a, b, self._c[: m * n].view(m, n), fresh, self._scale)
