"""Captures and recordings on disk. Files are 0600 and appear whole or not at all.

A capture is a directory (0700):
  manifest.json             what it is, when, of which nodes, whether it is complete, what is missing
  verdict.json verdict.txt  the same object as `mltop stacks --json`, and as text
  samples/NODE.jsonl.gz     a recording: a header line, then one Sample per line
  stacks/NODE/rank-R-pid-P.json   every dump of that rank: counters, digests and py-spy's JSON
  incidents.json findings.json    what was reported then, and what the health rules found
  kernel.txt                what the kernels said, by time
  records.json              what ranks have on record of their collectives, where they have anything
or the same as one file (.tar.gz), below a folder of its name.

Of processes it holds pids, names, users, states, counters and cgroups, of ranks also:
* the command line as `collect/redaction/process.py` shows it: of values and paths the plain ones, no secrets, and at
  most 200 characters; the path of the Python;
* out of the environment the rank's place (RANK, WORLD_SIZE and what other launchers call them) and its job's name
  (SLURM_JOB_ID, TORCHELASTIC_RUN_ID, MASTER_ADDR with MASTER_PORT, or PMIX_NAMESPACE);
* of the environment's other variables at most 40 settings with as much of their values as is plain, at most 100
  characters, and none whose name sounds like a secret's:
  CUBLAS_WORKSPACE_CONFIG, CUDA_DEVICE_MAX_CONNECTIONS, CUDA_DEVICE_ORDER, CUDA_ENABLE_COREDUMP_ON_EXCEPTION,
  CUDA_INJECTION64_PATH, CUDA_LAUNCH_BLOCKING, CUDA_MODULE_LOADING, CUDA_VISIBLE_DEVICES, FI_EFA_*, FI_PROVIDER,
  GLOO_*, GOMP_CPU_AFFINITY, HIP_VISIBLE_DEVICES, KMP_AFFINITY, LD_PRELOAD, MALLOC_ARENA_MAX, MALLOC_CHECK_,
  MKL_NUM_THREADS, NCCL_*, NSIGHT_*, NUMEXPR_NUM_THREADS, NVIDIA_TF32_OVERRIDE, NVIDIA_VISIBLE_DEVICES, NVSHMEM_*,
  NVTE_*, OMP_NUM_THREADS, OMP_PLACES, OMP_PROC_BIND, OPENBLAS_NUM_THREADS, PYTHONASYNCIODEBUG, PYTHONDEVMODE,
  PYTHONFAULTHANDLER, PYTHONMALLOC, PYTHONTRACEMALLOC, PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF,
  PYTORCH_NO_CUDA_MEMORY_CACHING, RDMAV_FORK_SAFE, ROCR_VISIBLE_DEVICES, SHARP_COLL_*, TORCHDYNAMO_DISABLE,
  TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, TORCH_CPP_LOG_LEVEL, TORCH_DISTRIBUTED_DEBUG, TORCH_LOGS, TORCH_NCCL_*,
  TORCH_SHOW_CPP_STACKTRACES, TORCH_USE_CUDA_DSA, TP_SOCKET_IFNAME, UCX_*;
* of stacks the names of threads, functions and files, lines' numbers, and of local variables integers that are small
  or count steps, turns, sizes or ranks (`collect/stacks/frames.py`);
Beside these: the machine's GPUs, ports, PCI devices, mounts and services, and lines of its kernel log. Tokens of
well-known shapes are hidden in all texts that users and their programs choose (`collect/redaction/shapes.py`).
"""

from mltop.probes.record.captures import CaptureWriter, Saved, read_capture, read_raw, safe_name
from mltop.probes.record.decoding import BadRecording
from mltop.probes.record.recordings import (
    NodeSamples,
    OpenRecording,
    StoredSamples,
    header_line,
    read_recording,
    recording,
)

__all__ = [
    "BadRecording",
    "CaptureWriter",
    "NodeSamples",
    "OpenRecording",
    "Saved",
    "StoredSamples",
    "header_line",
    "read_capture",
    "read_raw",
    "read_recording",
    "recording",
    "safe_name",
]
