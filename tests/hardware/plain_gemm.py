"""Matrix products in plain torch, in any Python that has it: `plain_gemm.py ORDER`, JSON lines on stdout.

ORDER (JSON) has ``task``: "scan", as mamf-finder searches: random operands, C = A x B^T into the same C, the L2 cache
flushed and C overwritten before every GEMM, a pair of events around each, the mean over iterations; the best of many
shapes counts, measured again with 50 + 100 iterations. Before it, or alone with the task "rates": of each data type
and shape the same mean, with the library of ``libraries``, and the rate of GEMMs back to back by the host's own clock.
Nothing here is mltop's. Ends when its input ends.
"""

import json
import os
import random
import select
import statistics
import sys
import time

FLUSH_BYTES = 256 << 20
STEP, MOST = 1024, 16384
WARM_UPS, ITERATIONS = 50, 100  # mamf-finder's
HOT = (8192, 8192, 8192)
FINALS = 13  # shapes that are measured again
MEAN_S = 3.0  # for a rate of the task "rates"
BATCH_S = 0.1
FORMATS = {"bf16": "bfloat16", "fp16": "float16", "tf32": "float32", "fp32": "float32", "fp8": "float8_e4m3fn"}


def say(**told):
    print(json.dumps(told), flush=True)


def end_with_input():
    if select.select([0], [], [], 0)[0] and not os.read(0, 4096):
        raise SystemExit(1)


class Gemms:
    """Of one data type; operands are views of buffers for the largest of the shapes."""

    def __init__(self, torch, kind, shapes):
        self.torch, self.kind = torch, kind
        torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
        dtype = getattr(torch, FORMATS[kind])
        filled = torch.bfloat16 if kind == "fp8" else dtype
        self.a = torch.randn(max(m * k for m, n, k in shapes), device="cuda", dtype=filled).to(dtype)
        self.b = torch.randn(max(n * k for m, n, k in shapes), device="cuda", dtype=filled).to(dtype)
        self.c = torch.empty(max(m * n for m, n, k in shapes), device="cuda", dtype=filled)
        self.fresh = torch.randn(max(m * n for m, n, k in shapes), device="cuda", dtype=filled)
        self.scale = torch.ones((), device="cuda", dtype=torch.float32)
        self.flush = torch.empty(FLUSH_BYTES // 4, device="cuda", dtype=torch.int32)

    def of(self, shape):
        """(what starts one GEMM, what comes before it under mamf-finder's protocol)"""
        m, n, k = shape
        a, b_t = self.a[: m * k].view(m, k), self.b[: n * k].view(n, k).t()
        c, fresh = self.c[: m * n].view(m, n), self.fresh[: m * n].view(m, n)
        torch = self.torch

        def gemm():
            if self.kind == "fp8":
                scale = self.scale
                return torch._scaled_mm(a, b_t, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
            return torch.mm(a, b_t, out=c)

        def before():
            self.flush.zero_()
            c.copy_(fresh)

        return gemm, before

    def mean_tflops(self, shape, warm_ups, iterations):
        gemm, before = self.of(shape)
        pairs = []
        for _ in range(warm_ups + iterations):
            pair = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
            before()
            pair[0].record()
            gemm()
            pair[1].record()
            pairs.append(pair)
        self.torch.cuda.synchronize()
        seconds = sum(begin.elapsed_time(end) for begin, end in pairs[warm_ups:]) / 1e3
        m, n, k = shape
        return 2 * m * n * k * iterations / seconds / 1e12

    def careful_mean(self, shape, most_s):
        """As mamf-finder measures, with fewer iterations where that takes longer. (TFLOPS, iterations)"""
        m, n, k = shape
        each_s = 2 * m * n * k / self.mean_tflops(shape, 1, 1) / 1e12
        iterations = max(10, min(ITERATIONS, int(most_s / 1.5 / each_s)))
        return self.mean_tflops(shape, iterations * WARM_UPS // ITERATIONS, iterations), iterations

    def settled_mean(self, shape, seconds):
        """The same over and over, of the second half the median: after a load without a pause the clock rises for a
        second.
        """
        means, began_s = [], time.perf_counter()
        while not means or time.perf_counter() - began_s < seconds:
            means.append(self.careful_mean(shape, seconds / 4)[0])
        return statistics.median(means[len(means) // 2 :])

    def back_to_back(self, shape, seconds):
        """TFLOPS by the host's clock, and by the GPU's."""
        gemm, _ = self.of(shape)
        m, n, k = shape
        gemm()
        self.torch.cuda.synchronize()
        began_s = time.perf_counter()
        gemm()
        self.torch.cuda.synchronize()
        batch = max(1, int(BATCH_S / max(1e-6, time.perf_counter() - began_s)))
        done, gpu_s, began_s = 0, 0.0, time.perf_counter()
        while not done or time.perf_counter() - began_s < seconds:
            begin, end = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
            begin.record()
            for _ in range(batch):
                gemm()
            end.record()
            self.torch.cuda.synchronize()
            gpu_s += begin.elapsed_time(end) / 1e3
            done += batch
        flop = 2 * m * n * k * done
        return flop / (time.perf_counter() - began_s) / 1e12, flop / gpu_s / 1e12


def prefer(torch, library):
    """Whether GEMMs are that library's from now on."""
    chosen = getattr(torch.backends.cuda, "preferred_blas_library", None)  # since torch 2.3
    if chosen is None:
        return False
    try:
        chosen(library)
    except RuntimeError:  # built without it
        return False
    return True


class Scan:
    """``means``: of every shape that was tried, TFLOPS. ``known`` of the order comes first, and again at the end."""

    def __init__(self, torch, order):
        sides = range(STEP, MOST + 1, STEP)
        self.torch, self.seconds = torch, order["seconds"]
        self.known = [tuple(shape) for shape in order["known"] if max(shape) <= 2 * MOST]
        grid = [(m, n, k) for m in sides for n in sides for k in sides]
        self.grid = len(grid)
        random.Random(1).shuffle(grid)
        self.waiting = self.known + grid
        self.gemms = Gemms(torch, order["dtype"], [*self.known, (MOST, MOST, MOST)])
        self.means = {}
        self.began_s = self.said_s = time.perf_counter()

    def over(self, share):
        return time.perf_counter() - self.began_s > share * self.seconds

    def attempt(self, shape):
        end_with_input()
        m, n, k = shape
        first = self.gemms.mean_tflops(shape, 1, 1)
        each_s = 2 * m * n * k / first / 1e12
        if 10 * each_s < self.seconds / 50:  # else a slow GPU would see few others
            self.means[shape] = self.gemms.mean_tflops(shape, 2, max(5, min(20, int(0.03 / each_s))))
        if time.perf_counter() - self.said_s > 5:
            self.said_s = time.perf_counter()
            say(event="progress", shapes=len(self.means), best=max(self.means.values(), default=0))

    def ranking(self):
        return sorted(self.means, key=lambda shape: -self.means[shape])

    def run(self):
        self.gemms.back_to_back(HOT, min(10, 0.05 * self.seconds))  # a cold GPU scores higher
        for shape in self.waiting:
            if self.over(0.6) and self.means:
                break
            self.attempt(shape)
        for step in (512, 256, 128):
            for shape in [near for best in self.ranking()[:3] for near in neighbours(best, step)]:
                if not self.over(0.8) and shape not in self.means:
                    self.attempt(shape)
        found = self.finals()
        best = max(found, key=lambda one: one["tflops"])
        seconds = time.perf_counter() - self.began_s
        say(event="scan", best=best, finals=found, shapes=len(self.means), grid=self.grid, seconds=seconds)

    def finals(self):
        """The best again with fresh iterations, since the best of many is partly luck; some with cuBLASLt, too."""
        ranking, found = self.ranking(), []
        for library, shapes in (("", ranking[: FINALS - 5]), ("cublaslt", ranking[:3])):
            if library and not prefer(self.torch, library):
                continue
            for shape in dict.fromkeys([*shapes, *self.known]):
                try:
                    mean, iterations = self.gemms.careful_mean(shape, 0.2 * self.seconds / FINALS)
                except RuntimeError:
                    if not library:
                        raise
                    continue  # cuBLASLt has no algorithm for it
                told = {"library": library or "torch's choice", "tflops": mean, "iterations": iterations}
                found.append({"shape": list(shape), **told})
        prefer(self.torch, "cublas")
        return found


def neighbours(shape, step):
    m, n, k = shape
    around = [(m + x, n + y, k + z) for x in (-step, 0, step) for y in (-step, 0, step) for z in (-step, 0, step)]
    return [near for near in around if all(0 < side <= MOST for side in near) and near != shape]


def rates(torch, order):
    """What torch cannot do on this GPU is told with its reason."""
    for kind, shapes in order["shapes"].items():
        end_with_input()
        gemms = None  # those of the type before are freed first, also after an error
        shapes = [tuple(shape) for shape in shapes]
        try:
            gemms = Gemms(torch, kind, shapes)
            prefer(torch, "cublas")
            gemms.back_to_back(shapes[-1], order["warm_s"])
            prefer(torch, order["libraries"].get(kind) or "cublas")
            means = [gemms.settled_mean(shape, MEAN_S) for shape in shapes]
            prefer(torch, "cublas")
            host, gpu = gemms.back_to_back(shapes[-1], order["rates_s"])
        except (RuntimeError, AttributeError, TypeError, ValueError) as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(event="rates", dtype=kind, why=f"{type(error).__name__}: {first}"[:300])
            continue
        say(event="rates", dtype=kind, means=means, host=host, gpu=gpu)
    say(event="tf32", differs=tf32_differs(torch), capability=list(torch.cuda.get_device_capability()))


def tf32_differs(torch):
    """Whether "high" precision gives other bits than "highest": older GPUs have no TF32, and torch ignores it there."""
    a, b = [torch.randn(512, 512, device="cuda", dtype=torch.float32) for _ in range(2)]
    found = []
    for precision in ("high", "highest"):
        torch.set_float32_matmul_precision(precision)
        found.append(torch.mm(a, b, out=torch.empty(512, 512, device="cuda", dtype=torch.float32)))
    return not torch.equal(*found)


def main(order):
    import torch

    torch.set_grad_enabled(False)
    torch.cuda.init()
    say(event="ready", pid=os.getpid())
    rates(torch, order)
    if order["task"] == "scan":
        Scan(torch, order).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
