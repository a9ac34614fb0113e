"""Captures and recordings on disk. Files are 0600 and appear whole or not at all.

A capture is a directory (0700):
  manifest.json             what it is, when, of which nodes, whether it is complete, what is missing
  verdict.json verdict.txt  the same object as `mltop stacks --json`, and as text
  samples/NODE.jsonl.gz     a recording: a header line, then one Sample per line
  stacks/NODE/rank-R-pid-P.json   every dump of that rank: counters, digests, py-spy's JSON

Of processes it holds pids, names, users, states, counters and cgroups, of ranks also:
* the command line as `collect/ranks/command_line.py` shows it: of values and paths the plain ones, no secrets, and at
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
  or count steps, turns, sizes or ranks (`collect/stacks/redact.py`).
Beside these: the machine's GPUs, ports, PCI devices, mounts and services, and lines of its kernel log. Tokens of
well-known shapes are hidden in all texts that users and their programs choose (`collect/shapes.py`).
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mltop.probes.model import NodeState, RankStacks, Sample, to_json
from mltop.probes.reach.view import Connection
from mltop.probes.version import __version__

MANIFEST = "manifest.json"


class BadRecording(Exception):
    """A path that is not a capture or recording; the message says why."""


def write_file(path: Path, data: bytes) -> None:
    """Write ``data`` to a 0600 file that appears whole: a temporary file beside it, synced, then renamed."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def header_line(started_at: float) -> str:
    """The first line of a recording."""
    return json.dumps({"mltop_recording": 1, "version": __version__, "started_at": started_at})


def recording(samples: list[Sample]) -> bytes:
    """The text of a recording of these samples."""
    started_at = samples[0].sampled_at if samples else time.time()
    return ("\n".join([header_line(started_at), *map(to_json, samples)]) + "\n").encode()


@dataclass
class Recording:
    """``cut_off``: the file ends in the middle; ``samples`` are those that are whole, in the file's order."""

    samples: list[Sample] = field(default_factory=list)
    cut_off: bool = False


def read_recording(path: Path) -> Recording:
    """All samples of a recording; one that was cut off in the middle gives what is whole."""
    import msgspec

    decoder = msgspec.json.Decoder(Sample)
    made = Recording()
    lines = _whole_lines(path, made)
    try:
        header = json.loads(next(lines, b"{}"))
    except ValueError:
        header = {}
    if not isinstance(header, dict) or header.get("mltop_recording") != 1:
        raise BadRecording(f"{path} is not an mltop recording (its first line has no mltop_recording header)")
    for line in lines:
        try:
            made.samples.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadRecording(f"{path}: line {len(made.samples) + 2}: {error}") from error
    return made


def _whole_lines(path: Path, made: Recording) -> Iterator[bytes]:
    """Lines that end in a newline; a gzip stream that breaks off ends the reading, not the program."""
    rest = b""
    inflate = _Inflate() if path.suffix == ".gz" else None
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 16):
                *lines, rest = (rest + (inflate.read(block) if inflate else block)).split(b"\n")
                yield from lines
    except zlib.error:
        made.cut_off = True
        return
    except OSError as error:
        raise BadRecording(f"{path}: {error.strerror}") from error
    made.cut_off = bool(rest) or (inflate is not None and not inflate.ended)


class _Inflate:
    """A gzip file of one member or of several, one after the other (`cat a.gz b.gz`). Raises zlib.error."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)

    @property
    def ended(self) -> bool:
        return self._member.eof

    def read(self, block: bytes) -> bytes:
        found = b""
        while block:
            if self._member.eof:
                block = block.lstrip(b"\0")  # padding of tapes and block devices
                if not block:
                    break
                self._member = zlib.decompressobj(wbits=31)
            found += self._member.decompress(block)
            block = self._member.unused_data
        return found


class CaptureWriter:
    """Writes one capture piece by piece; the manifest says at any moment what is there. From any thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.RLock()
        self._files: set[str] = set()
        self._manifest: dict[str, Any] = {
            "mltop_capture": 1,
            "version": __version__,
            "started_at": time.time(),
            "finished_at": None,
            "complete": False,
            "nodes": [],
            "files": [],
            "problems": [],
        }
        directory.mkdir(mode=0o700, parents=True, exist_ok=False)
        self._write_manifest()

    @property
    def problems(self) -> list[str]:
        problems: list[str] = self._manifest["problems"]
        return problems

    def problem(self, sentence: str) -> None:
        """Something that will be missing from this capture."""
        with self._lock:
            self.problems.append(sentence)
            self._write_manifest()

    def nodes(self, states: Iterable[NodeState], connections: Mapping[str, Connection] | None = None) -> None:
        """The state of every node, and how it was reached (``connection``: the fields of `Connection`)."""
        known = connections or {}
        entries = [
            {**vars(state), **({"connection": known[state.node]} if state.node in known else {})} for state in states
        ]
        with self._lock:
            self._manifest["nodes"] = entries
            self._write_manifest()

    def add(self, name: str, data: bytes) -> None:
        """One file, ``name`` relative to the directory; a failure is noted and the rest goes on."""
        try:
            write_file(self.directory / name, data)
        except OSError as error:
            self.problem(f"{name} could not be written: {error.strerror}")
            return
        with self._lock:
            if name not in self._files:
                self._files.add(name)
                self._manifest["files"].append(name)

    def add_samples(self, node: str, samples: list[Sample]) -> None:
        self.add(f"samples/{safe_name(node)}.jsonl.gz", gzip.compress(recording(samples), 6))

    def add_dumps(self, dumps: list[RankStacks]) -> None:
        """One file per process, holding all its rounds."""
        by_process: dict[tuple[str, int], list[RankStacks]] = {}
        for dump in dumps:
            by_process.setdefault((dump.node, dump.pid), []).append(dump)
        for (node, pid), rounds in by_process.items():
            rank = "unknown" if rounds[0].rank is None else str(rounds[0].rank)
            self.add(f"stacks/{safe_name(node)}/rank-{rank}-pid-{pid}.json", to_json(rounds).encode())

    def finish(self) -> None:
        """Everything that could be written is there."""
        with self._lock:
            self._manifest.update(finished_at=time.time(), complete=not self.problems)
            self._write_manifest()

    def _write_manifest(self) -> None:
        text = json.dumps(self._manifest, indent=1, default=vars)
        write_file(self.directory / MANIFEST, text.encode())


def safe_name(node: str) -> str:
    """A node's name as a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in node).lstrip(".") or "_"


@dataclass
class Capture:
    """What a capture directory holds. ``problems``: what it lacks, by its own manifest and by looking."""

    nodes: list[NodeState] = field(default_factory=list)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    dumps: list[RankStacks] = field(default_factory=list)
    not_answered: list[NodeState] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_capture(directory: Path) -> Capture:
    """A capture; BadRecording says why it is none. Fields of newer versions are ignored."""
    manifest = _manifest(directory)
    made = Capture(nodes=_states(directory / MANIFEST, manifest.get("nodes", [])))
    made.problems += [str(problem) for problem in manifest.get("problems") or []]
    if manifest.get("finished_at") is None:
        made.problems.append("the capture was cut off before it was finished")
    files = [str(name) for name in manifest.get("files") or []]
    made.problems += [f"{name} is missing" for name in files if not (directory / name).is_file()]
    # Names with a leading dot are temporary files of a capture that was killed.
    for path in sorted((directory / "samples").glob("[!.]*.jsonl*")):
        _add_samples(made, path)
    for path in sorted((directory / "stacks").glob("*/[!.]*.json")):
        made.dumps += _dumps(path)
    made.not_answered = _not_answered(directory / "verdict.json")
    return made


def _manifest(directory: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise BadRecording(f"{directory} is not an mltop capture (it has no {MANIFEST})") from None
    except (OSError, ValueError) as error:
        raise BadRecording(f"{directory / MANIFEST}: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("mltop_capture") != 1:
        raise BadRecording(f"{directory / MANIFEST} is not an mltop capture of a version known here")
    return manifest


def _states(path: Path, value: object) -> list[NodeState]:
    import msgspec

    try:
        return msgspec.convert(value, list[NodeState])
    except msgspec.ValidationError as error:
        raise BadRecording(f"{path}: {error}") from error


def _add_samples(made: Capture, path: Path) -> None:
    recording = read_recording(path)
    if recording.cut_off:
        made.problems.append(f"samples/{path.name} is cut off")
    for sample in recording.samples:
        made.samples.setdefault(sample.node, []).append(sample)


def _dumps(path: Path) -> list[RankStacks]:
    import msgspec

    try:
        return msgspec.json.decode(path.read_bytes(), type=list[RankStacks])
    except (OSError, msgspec.MsgspecError) as error:
        raise BadRecording(f"{path}: {error}") from error


def _not_answered(path: Path) -> list[NodeState]:
    """From the saved verdict; [] for a capture that was cut off before its verdict."""
    try:
        saved = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise BadRecording(f"{path}: {error}") from error
    if not isinstance(saved, dict):
        raise BadRecording(f"{path} is not a verdict of mltop")
    return _states(path, saved.get("not_answered", []))
