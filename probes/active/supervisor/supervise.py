"""The probes of one node: what may run, with which Python, one process per device or one for all, until the end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Callable

from mltop.probes.active.child import Order, to_line
from mltop.probes.active.supervisor import gate
from mltop.probes.active.supervisor.gate import CPU, Holder, Target, choose, cpu_device, refused
from mltop.probes.active.supervisor.process import CannotTell, Emit, ProbeProcess, Stuck, Watched, watch
from mltop.probes.active.supervisor.pythons import (
    JobProcess,
    NoTorch,
    NotTaken,
    TorchPython,
    find_torch,
    probe_command,
    with_devices,
)
from mltop.probes.active.supervisor.request import ProbeRequest, modules
from mltop.probes.model import GpuSample, Sample
from mltop.probes.model.probe import ProbeDevice, ProbeEvent
from mltop.probes.model.probe_kinds import CHILDREN
from mltop.probes.system import as_root

_SMALLEST_LIMIT_BYTES = 1 << 30
_ENDED_KEPT_S = 60.0


@dataclass
class Facts:
    """What is known of the node: ``samples`` (newest last, at least one), foreign processes on its GPUs by pid, other
    probes of mltop that run on it, the training processes whose Python may be used, and those of which it may not.
    """

    node: str
    samples: list[Sample]
    holders: dict[int, Holder] = field(default_factory=dict)
    other_probes: list[Holder] = field(default_factory=list)
    jobs: list[JobProcess] = field(default_factory=list)
    not_taken: list[NotTaken] = field(default_factory=list)


@dataclass
class _Turn:
    """The one probe that may run here."""

    request: ProbeRequest
    processes: list[ProbeProcess] = field(default_factory=list)

    def __str__(self) -> str:
        pids = [process.pid for process in self.processes] or [os.getpid()]
        noun, pid = ("pids", f"{pids[0]}-{pids[-1]}") if len(pids) > 1 else ("pid", str(pids[0]))
        return f"{gate.a_probe(self.request.kind)} ({noun} {pid}, key {self.request.key}) runs here"


class Supervisor:
    """One per agent: it remembers processes that cannot be ended. Any thread may call it; one probe runs at a time.

    ``modules_of_kinds``: where each kind's ``main`` is (``request.modules``).
    """

    def __init__(self, modules_of_kinds: Mapping[str, str] | None = None) -> None:
        self._modules = dict(modules_of_kinds or modules())
        self._lock = threading.Lock()
        self._turn: _Turn | None = None
        self._stuck: list[Stuck] = []
        self._ended_s: dict[int, float] = {}  # pid → monotonic

    def run(
        self, request: ProbeRequest, facts: Callable[[], Facts | None], emit: Emit, cancelled: threading.Event
    ) -> None:
        """Run one probe to its end, be that the end of ``cancelled``; what is said goes to ``emit``.

        ``facts`` is called once the turn is ours; None from it: cancelled.
        """
        turn = _Turn(request)
        with self._lock:
            before, self._turn = self._turn, self._turn or turn
        if before is not None:
            emit(ProbeEvent("refused", why=str(before), fix="wait until it is over, or cancel it"))
            return
        try:
            node_facts = facts()
            if node_facts is not None and not cancelled.is_set():
                self._run(turn, node_facts, emit, cancelled)
        finally:
            with self._lock:
                self._turn = None

    def tell(self, key: str, line: dict[str, Any]) -> str:
        """A line for every process of the probe that has this key; "" or why it cannot be told."""
        with self._lock:
            turn = self._turn
            processes = list(turn.processes) if turn is not None and turn.request.key == key else []
        if not processes:
            return f"no probe with the key {key} runs here" + (f": {turn}" if turn and turn.request.key != key else "")
        data = to_line(line).encode()
        for process in processes:
            try:
                process.tell(data)
            except CannotTell as why:
                return f"the probe (pid {process.pid}) does not take input: {why}"
        return ""

    def ended(self) -> dict[int, float]:
        """Pids of our processes that ended in the last minute, and when (monotonic s)."""
        with self._lock:
            now = time.monotonic()
            self._ended_s = {pid: at_s for pid, at_s in self._ended_s.items() if now - at_s < _ENDED_KEPT_S}
            return dict(self._ended_s)

    def _run(self, turn: _Turn, facts: Facts, emit: Emit, cancelled: threading.Event) -> None:
        request = turn.request
        targets = self._admitted(request, facts, emit)
        if not targets:
            return
        for_gpus = any(target.gpu is not None for target in targets)
        try:
            python = find_torch(
                request.python, facts.jobs, for_gpus, cancelled, not_taken=facts.not_taken, trust=request.trust_python
            )
        except NoTorch as error:
            emit(ProbeEvent("failed", stage="find python", why=str(error), fix=error.fix))
            return
        if python is None:
            return
        about: dict[str, Any] = {
            "python": python.executable,
            "python_version": python.python,
            "python_origin": python.origin,
            **{name: getattr(python, name) for name in ("torch", "cuda", "hip")},
        }
        emit(ProbeEvent("devices", data={**about, "devices": [asdict(target.device) for target in targets]}))
        if python.left_out:
            left_out = as_root.in_words(python.left_out)
            text = f"root takes nothing from its environment that others can change, not {left_out}"
            emit(ProbeEvent("note", text=text, data={"remark": True}))
        watched: list[Watched] = []
        try:
            alone = CHILDREN[request.kind].per_device
            for group in [[target] for target in targets] if alone else [targets]:
                started = self._started(turn, facts, group, python, emit)
                watched += [started] if started is not None else []
        finally:
            try:
                watch(watched, cancelled, request.total_s)
            finally:
                with self._lock:
                    for ended in watched:
                        self._stuck += ended.stuck
                        self._ended_s[ended.process.pid] = time.monotonic()

    def _admitted(self, request: ProbeRequest, facts: Facts, emit: Emit) -> list[Target]:
        """The devices that may be measured; why others may not is said."""
        chosen = list(choose(request, facts.samples[-1], cpu_device()))
        self._stuck = [stuck for stuck in self._stuck if stuck.is_there()]
        events = [refused(target.device, target.refusal) for target in chosen if target.refusal is not None]
        admitted = []
        for target in (target for target in chosen if target.refusal is None):
            refusal = self._refusal(target, request, facts)
            if refusal is None:
                admitted.append(target)
            else:
                events.append(refused(target.device, refusal))
        if not CHILDREN[request.kind].one_gpu and events and admitted:  # with fewer it would be another measurement
            refusal = gate.of_all(events[0].data["device"]["index"], events[0].why)
            events += [refused(target.device, refusal) for target in admitted]
            admitted = []
        for event in events:
            emit(event)
        for target in admitted:
            if target.gpu is None:
                remarks = list(filter(None, [gate.cpu_remark(facts.samples)]))
            else:
                remarks = gate.unknowns(target.gpu, _recent(target.gpu, facts.samples), target.instance)
            for text in remarks:
                emit(ProbeEvent("note", device=target.device.uuid, text=text, data={"remark": True}))
        return admitted

    def _refusal(self, target: Target, request: ProbeRequest, facts: Facts) -> gate.Refusal | None:
        for stuck in self._stuck:
            if stuck.uuid == target.device.uuid:
                why = f"pid {stuck.pid} of an earlier probe still holds it and cannot be ended"
                fix = "reset the GPU, or reboot the node" if target.gpu is not None else "reboot the node"
                return gate.Refusal(why, fix, "stuck")
        if target.gpu is None:
            return gate.cpu_refusal(facts.samples, facts.other_probes, force=request.force)
        recent = _recent(target.gpu, facts.samples)
        return gate.refusal(target.gpu, recent, facts.holders, force=request.force, instance=target.instance)

    def _started(
        self, turn: _Turn, facts: Facts, group: Sequence[Target], python: TorchPython, emit: Emit
    ) -> Watched | None:
        request, devices = turn.request, [target.device for target in group]
        order = Order(request.kind, facts.node, devices, completed(request, devices), request.deadlines_s)
        available, most_bytes = facts.samples[-1].host.memory_available_bytes, None
        if available is not None and all(target.gpu is None for target in group):
            # On processors half of what is free, so that a probe never takes a node's last memory.
            most_bytes = max(_SMALLEST_LIMIT_BYTES, available // 2)
        try:
            process = ProbeProcess(
                probe_command(python.path, self._modules[request.kind], request.kind, request.key),
                with_devices(python.environ, devices),
                order.to_line().encode(),
                most_bytes,
            )
        except OSError as error:
            why = f"no process can be started: {error.strerror or error}"
            emit(ProbeEvent("failed", device=devices[0].uuid if len(devices) == 1 else "", why=why))
            return None
        with self._lock:
            turn.processes.append(process)
        return Watched(process, request.kind, devices, request.deadlines_s, emit)


def completed(request: ProbeRequest, devices: Sequence[ProbeDevice]) -> dict[str, Any]:
    """The options of the order. Collectives get what the caller left to the devices of the node: ``backend`` by what
    they are, ``ranks`` on processors (``cpu_ranks``, else one per core, 2 to 8).
    """
    options = dict(request.options)
    if not CHILDREN[request.kind].one_gpu:
        options["backend"] = options.get("backend") or ("gloo" if devices[0].kind == CPU else "nccl")
        if not options.get("ranks") and options["backend"] == "gloo":
            options["ranks"] = options.get("cpu_ranks") or min(8, max(2, os.cpu_count() or 2))
    return options


def _recent(gpu: GpuSample, samples: Sequence[Sample]) -> list[GpuSample]:
    """The same GPU in each sample that has it."""
    return [same for sample in samples for same in sample.gpus if (same.uuid, same.index) == (gpu.uuid, gpu.index)]
