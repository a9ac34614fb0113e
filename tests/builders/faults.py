"""What breaks in a recording of tests/builders/fault_recordings.py, by the names that engineers call it."""

from __future__ import annotations

from dataclasses import replace

from mltop.probes.collect.kernel_log.decode import decode
from mltop.probes.model import Fabric, Gap, GpuSample, KernelEvent, LinkSample, Remap, RemapBanks, Sample
from mltop.probes.model.sample import BlockedProcess
from tests.builders.fault_recordings import BROKE_AT, Change, dies, ends, hangs, idle, logs, on, says
from tests.builders.health_samples import GIB, GPU_BUSES, changed

ALWAYS_S = 1e9
PORT, NIC = "mlx5_2", "0000:4f:00.0"
NFS = "10.0.4.11"
GPU_GONE = "GPU has fallen off the bus."
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
ILLEGAL = "CUDA error: an illegal memory access was encountered"
WORKER_KILLED = "RuntimeError: DataLoader worker (pid 10031) is killed by signal: Killed."
NO_SPACE = "OSError: [Errno 28] No space left on device: '/scratch/checkpoint'"


def gpus(*locals_: int, **fields: object) -> Change:
    """These GPUs of node 0 (none named: all) tell something else from the fault on."""

    def do(after_s: float, sample: Sample) -> None:
        for at, each in enumerate(sample.gpus):
            if each.index in locals_ or not locals_:
                sample.gpus[at] = _throttled(changed(each, fields), after_s)

    return on(0, do)


def _throttled(each: GpuSample, after_s: float) -> GpuSample:
    counted = dict.fromkeys(each.throttle_reasons or (), after_s * 1000000000.0)
    each.throttle_ns = {name: int(ns + counted.get(name, 0.0)) for name, ns in (each.throttle_ns or {}).items()}
    return each


def port(number: int, *, until_s: float = ALWAYS_S, **fields: object) -> Change:
    """``mlx5_2`` of a node."""

    def do(_: float, sample: Sample) -> None:
        for at, each in enumerate(sample.links):
            if each.device == PORT:
                sample.links[at] = changed(each, {"rx_bytes_per_s": 0.0, "tx_bytes_per_s": 0.0, **fields})

    return on(number, do, until_s=until_s)


def unanswered(number: int) -> Change:
    """Peers of the node's ``mlx5_2`` do not answer."""

    def do(after_s: float, sample: Sample) -> None:
        for each in sample.links:
            if each.device == PORT:
                _add(each, local_ack_timeout_err=int(5 * after_s), packet_seq_err=int(3 * after_s))

    return on(number, do)


def _add(link: LinkSample, **more: int) -> None:
    for name, amount in more.items():
        link.counters[name] += amount


def links_of(local: int, up: int) -> Change:
    """Of a GPU of node 0 only so many NVLinks are up."""

    def do(_: float, sample: Sample) -> None:
        for each in sample.gpus:
            if each.index == local and each.nvlink is not None:
                each.nvlink.links = [replace(link, active=link.index < up) for link in each.nvlink.links]

    return on(0, do)


def kernel(kind: str, subject: str, text: str, node: int = 0, **fields: object) -> Change:
    return says(changed(KernelEvent(BROKE_AT + 1.0, kind, subject, None, text), fields), node)


def oom(pid: int) -> Change:
    text = f"oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid={pid}"
    return says(KernelEvent(BROKE_AT, "oom", "python", None, text, pid=pid, process="python"), 0)


def nvml(code: str, why: str, fix: str = "") -> Change:
    """NVML of node 0 tells nothing."""

    def do(_: float, sample: Sample) -> None:
        sample.gpus = []
        sample.gaps = [*sample.gaps, Gap("nvml", why, fix, code=code)]

    return on(0, do)


def blocked(node: int, after_s: float, sample: Sample) -> None:
    """All ranks are in D, in NFS."""
    hangs()(node, after_s, sample)
    for each in sample.ranks if after_s >= 0 else ():
        each.state, each.wchan, each.cpu_fraction, each.main_cpu_s = "D", "rpc_wait_bit_killable", 0.0, BROKE_AT
        idle(sample, each)


def full_disk(_: float, sample: Sample) -> None:
    sample.host.filesystems = [
        replace(each, available_bytes=0) if each.mount == "/scratch" else each for each in sample.host.filesystems
    ]


def grows(node: int, after_s: float, sample: Sample) -> None:
    """Memory, from the beginning on."""
    if node == 0:
        sample.host.memory_available_bytes = max(5 * GIB, int(1700 * GIB - max(0.0, after_s + 240.0) * 7 * GIB))


LOST = gpus(3, state="lost", error="GPU is lost", error_code="gpu_is_lost", temperature_c=None, power_w=None, busy=None)
HOT = gpus(
    3, throttle_reasons=["hw_thermal"], temperature_c=89.0, sm_clock_mhz=1095, temperature_margin_c=-2.0, power_w=410.0
)
BRAKE = gpus(throttle_reasons=["power_brake"], sm_clock_mhz=600, power_w=250.0)
SILENT_SERVER = tuple(kernel("nfs", NFS, f"nfs: server {NFS} not responding, still trying", at) for at in (0, 1))
DOWN = port(0, state="DOWN", physical_state="Polling")

# name: (the changes, kind, beginning of the headline (of the cause), of the loss, (rank, GPU) that is named or None)
FAULTS: dict[str, tuple[tuple[Change, ...], str, str, str, int | None]] = {
    "a GPU is lost, its rank dies": (
        (dies(3, code=6), LOST, logs(79, text=GPU_GONE)),
        *("hang", "n0: GPU 3 lost", "; rank 3 died, 15 ranks wait since", 3),
    ),
    "a GPU is lost, its rank hangs": (
        (hangs(3), LOST, logs(79, text=GPU_GONE)),
        *("hang", "n0: GPU 3 lost", "; rank 3 is stuck, 15 ranks wait since", 3),
    ),
    "a GPU is lost, the job dies": (
        (ends([3], how="signal", code=6), LOST, logs(79, text=GPU_GONE)),
        *("crash", "n0: GPU 3 lost", "; rank 3 died, 15 other ranks went down with it at", 3),
    ),
    "Xid 48": (
        (dies(3, code=6), logs(48, text="DBE"), gpus(3, ecc={"uncorrected_volatile": 1})),
        *("hang", "n0: Xid 48 on GPU 3", "; rank 3 died, 15 ranks wait since", 3),
    ),
    "Xid 94": (
        (dies(3, how="exit", code=1, error=ECC), logs(94, text="Contained")),
        *("hang", "n0: Xid 94 on GPU 3", "; rank 3 died, 15 ranks wait since", 3),
    ),
    "Xid 31": (
        (dies(3, how="exit", code=1, error=ILLEGAL), logs(31, text="MMU Fault")),
        *("hang", f"rank 3 (n0 GPU 3) died (exited with code 1: {ILLEGAL})", ", 15 ranks wait since", 3),
    ),
    "Xid 43": (
        (hangs(3), logs(43, text="Ch 00000008")),
        *("hang", "n0: Xid 43 on GPU 3", "; rank 3 is stuck, 15 ranks wait since", 3),
    ),
    "an NVLink is inactive": (
        (hangs(3), links_of(3, up=16)),
        *("hang", "n0: GPU 3: 16 of 18 NVLinks up", "; rank 3 is stuck, 15 ranks wait since", 3),
    ),
    "a port is down, peers complain": (
        (hangs(), DOWN, unanswered(1)),
        *("hang", "n0: mlx5_2 is down", "; ranks 0-7 are stuck, 8 ranks wait since", 0),
    ),
    "a driver of a NIC fails": (
        (
            hangs(),
            port(0, state="DOWN", physical_state="Disabled"),
            kernel("mlx5", NIC, f"mlx5_core {NIC}: health recovery failed, fatal error detected"),
        ),
        *("hang", "n0: mlx5_2", "; ranks 0-7 are stuck, 8 ranks wait since", 0),
    ),
    "a file server is silent": (
        (blocked, *SILENT_SERVER),
        *("hang", f"NFS {NFS} not answering", "; all 16 ranks stuck since", None),
    ),
    "a rank is out of memory": (
        (dies(3, how="oom", code=9), oom(4003)),
        *("hang", "n0: kernel killed python (4003) for lack of memory", "; rank 3 died, 15 ranks wait since", 3),
    ),
    "a worker is out of memory": (
        (dies(3, how="exit", code=1, error=WORKER_KILLED), oom(10031)),
        *("hang", "n0: kernel killed python (10031) for lack of memory", "; rank 3 died, 15 ranks wait since", 3),
    ),
    "memory grows until a rank is killed": (
        (grows, ends([3], how="oom", code=9), oom(4003)),
        *("crash", "n0: kernel killed python (4003) for lack of memory", "; rank 3 died, 15 other ranks went down", 3),
    ),
    "the disk is full": (
        (ends([3], how="exit", code=1, error=NO_SPACE), on(0, full_disk)),
        *("crash", "n0: /scratch 100 % full", "; rank 3 died, 15 other ranks went down with it at", 3),
    ),
    "NVML is stuck": (
        (hangs(3, state="D", wchan="nvidia_ioctl"), nvml("stuck", "NVML does not answer: stuck in nvmlInit for 12 s")),
        *("hang", "n0: NVML does not answer", "; rank 3 does not come back from the kernel, ", 3),
    ),
    "the driver is gone": (
        (hangs(3), nvml("driver_mismatch", "driver 570.124 does not match the library 570.133", "reboot the node")),
        *("hang", "n0: Driver 570.124 does not match the library", "; ranks 0-7 are stuck, 8 ranks wait since", 0),
    ),
    "a GPU is too hot": ((HOT,), "node", "n0: GPU 3 is too hot", "", None),
    "the power supply brakes": ((BRAKE,), "node", "n0: PSU brake on all 8 GPUs", "", None),
}


# One fault each, with all that a real node shows of it; lines of the kernel in the drivers' own words.


def line(text: str, node: int = 0, delay_s: float = 0.0) -> Change:
    event = decode(text, BROKE_AT + delay_s)
    assert event is not None, text
    return says(event, node)


def driver_line(code: int, text: str, local: int = 3, delay_s: float = 0.0) -> Change:
    return line(f"NVRM: Xid (PCI:0000:{GPU_BUSES[local]}:00): {code}, {text}", delay_s=delay_s)


def host(**fields: object) -> Change:
    return on(0, lambda _, sample: setattr(sample, "host", changed(sample.host, fields)))


def card(device: str, node: int = 0, per_s: dict[str, float] | None = None, **fields: object) -> Change:
    """A port tells something else, and its counters grow by so much a second."""

    def do(after_s: float, sample: Sample) -> None:
        for at, each in enumerate(sample.links):
            if each.device == device:
                sample.links[at] = changed(each, fields)
                _add(sample.links[at], **{name: int(after_s * rate) for name, rate in (per_s or {}).items()})

    return on(node, do)


def pci(bus: str, **fields: object) -> Change:
    def do(after_s: float, sample: Sample) -> None:
        for at, each in enumerate(sample.pci):
            if each.bus_id == f"0000:{bus}:00.0":
                sample.pci[at] = changed(each, {**fields, "aer": {**each.aer, "correctable": int(10 * after_s)}})

    return on(0, do)


def stuck(name: str, pid: int) -> Change:
    def do(after_s: float, sample: Sample) -> None:
        sample.host.blocked = [BlockedProcess(pid, name, after_s, "rpcRecvPoll_GSP")]

    return on(0, do)


def vanishes(*locals_: int) -> Change:
    """Ranks are gone and nobody saw how, the others wait for them."""
    dead = dies(*locals_)

    def change(node: int, after_s: float, sample: Sample) -> None:
        dead(node, after_s, sample)
        sample.deaths = []

    return change


def pinned(cpus: str) -> Change:
    def do(_: float, sample: Sample) -> None:
        for each in sample.ranks:
            each.cpus_allowed = cpus

    return on(0, do)


NO_SPARES = Remap(2, 8, False, True, False, RemapBanks(2558, 1, 0, 0, 1))
GSP = "pid=4003, name=python, Timeout after 6s of waiting for RPC response from GPU3 GSP! Expected function 76."
OFF_BUS = f"pid='<unknown>', name=<unknown>, {GPU_GONE}"
LINK = "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link {}(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
NETIR = "NETIR_LINK_EVT  {}   XC0 i0 Link {} (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
ASKS = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
BRIDGE_LINE = "pcieport 0000:5d:01.0: AER: Uncorrected (Fatal) error received: 0000:5d:01.0"
SLOT = "pci 0000:c3:00.0: 126.024 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x8 link at 0000:5d:01.0"
HUNG = "INFO: task nvidia-smi:7711 blocked for more than 122 seconds."
KILLED = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/job,task_memcg=/job,task=python,pid=10031,uid=1000"
)
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
COMPLAINS = {"local_ack_timeout_err": 5.0, "packet_seq_err": 12.0}
PEERS = tuple(card("mlx5_5", node, COMPLAINS) for node in (1, 2, 3))
NO_LINK = {"state": "DOWN", "physical_state": "Polling", "rx_bytes_per_s": 0.0, "tx_bytes_per_s": 0.0}
SICK = gpus(3, fabric=Fabric("completed", "unhealthy", ["route_unhealthy"], 0, "6b1c4d2e"))
DAMAGED = {"symbol_error": 50.0, "port_rcv_errors": 20.0, "local_ack_timeout_err": 5.0}
FAILED_MANAGER = host(services={"nvidia-fabricmanager": "failed", "nvidia-imex": "absent"})
OTHER_DRIVER = gpus(driver="570.133.20", gsp_firmware="570.133.20", fabric=Fabric("not_started", None, [], 0, ""))

# name: (the changes, nodes, beginning of the headline, beginning of the action)
WHOLE_FAULTS: dict[str, tuple[tuple[Change, ...], int, str, str]] = {
    "a damaged cable, peers complain": (
        (card("mlx5_5", 0, DAMAGED), *PEERS),
        *(4, "n0: bit errors on mlx5_5", "clean the fibre"),
    ),
    "only peers complain": (PEERS, 4, "3 nodes: peers are not answering mlx5_5", "find the peer"),
    "a switch is down": (
        (*(card("mlx5_5", node, **NO_LINK) for node in (0, 1, 2)), card("mlx5_5", 3, COMPLAINS)),
        *(4, "3 nodes: mlx5_5 is down (Polling)", "check the switch that mlx5_5 of these nodes leads to; then reseat"),
    ),
    "a switch is down, a job hangs": (
        (*(card("mlx5_5", node, **NO_LINK) for node in (0, 1, 2)), hangs(3)),
        *(4, "n0 and 2 more nodes: mlx5_5 is down (Polling); rank 3 is stuck", "check the switch that mlx5_5"),
    ),
    "two ports are down": (
        (card("mlx5_5", **NO_LINK), card("mlx5_6", **NO_LINK)),
        *(2, "n0: mlx5_5, mlx5_6 are down", "reseat or clean the cable"),
    ),
    "a rank of two vanishes": (
        (lambda _, __, sample: _only_two(sample), vanishes(1)),
        *(1, "rank 1 (GPU 1) died (its process is gone), 1 rank waits since", "see in its log"),
    ),
    "a row is not remapped": (
        (driver_line(64, "pid='<unknown>', name=<unknown>, Row Remapper: Failed"), gpus(3, remap=NO_SPARES)),
        *(2, "n0: Xid 64 on GPU 3", "take the node out of the pool"),
    ),
    "the GSP is silent": (
        (driver_line(119, GSP), stuck("nvidia-smi", 7711), line(HUNG, delay_s=130.0)),
        *(2, "n0: Xid 119 on GPU 3", "reboot: the driver does not come back"),
    ),
    "an NVLink fails, Blackwell": (
        (driver_line(149, NETIR.format("Fatal", "08")), driver_line(149, NETIR.format("Fatal", "11")), SICK),
        *(2, "n0: Xid 149 on GPU 3: NVLink error (NETIR) on links 8, 11", "end the job and reset all GPUs"),
    ),
    "an NVLink fails, not fatally": (
        (driver_line(149, NETIR.format("Nonfatal", "08")), SICK),
        *(2, "n0: Xid 149 on GPU 3: NVLink error (NETIR) on link 8", "end the job and reset all GPUs"),
    ),
    "NVLinks fail": (
        (driver_line(74, LINK.format(17)), links_of(3, up=16), SICK),
        *(2, "n0: Xid 74 on GPU 3: NVLink error on link 17; GPU 3: 16 of 18 NVLinks up (16-17 down)", "end the job"),
    ),
    "an NVSwitch fails": (
        (line(SWITCH), *(driver_line(74, LINK.format(6), local) for local in range(8)), SICK),
        *(2, "n0: SXid 20034: fatal error of NVSwitch 0000:07:00.0 on link 30", "end the jobs, reset all GPUs"),
    ),
    "the Fabric Manager is of another version": (
        (FAILED_MANAGER, OTHER_DRIVER),
        *(5, "n0: Fabric Manager is down (failed); n0 has driver 570.133.20, 4 others", "bring the node's versions"),
    ),
    "a slot": (
        (gpus(5, pcie={"width": 8}), pci("c3", link_width=8), line(SLOT)),
        *(2, "n0: GPU 5 PCIe link at x8 of x16", "reseat the card"),
    ),
    "all ranks on one core": ((pinned("0"),), 2, "n0: all 8 ranks pinned to core 0", "srun --cpu-bind"),
    "ranks on the other socket": ((pinned("0-7"),), 2, "n0: ranks 4-7 run on cores 0-7", "bind the rank"),
    "a worker is killed, /dev/shm is full": (
        (line(KILLED), host(shm_used_bytes=1020 * GIB)),
        *(2, "n0: kernel killed python (10031) for lack of memory, cgroup limit; /dev/shm 100 % full", "remove what"),
    ),
    "off the bus": (
        (LOST, gpus(3, recovery_action=None), line(BRIDGE_LINE), driver_line(79, OFF_BUS), driver_line(154, ASKS)),
        *(2, "n0: GPU 3 lost", "drain and reboot the node"),
    ),
    "NVML refuses for one GPU": (
        (nvml("lost", "NVML refuses: GPU is lost", "reboot the node"), driver_line(79, OFF_BUS)),
        *(2, "n0: Xid 79: GPU 3 fell off the bus; NVML refuses: GPU is lost", "reboot the node"),
    ),
    "heat and power": (
        (gpus(3, throttle_reasons=["hw_thermal", "power_brake"], temperature_c=89.0, sm_clock_mhz=1095),),
        *(2, "n0: GPU 3 is too hot", "check fans"),
    ),
}


def _only_two(sample: Sample) -> None:
    sample.ranks = [replace(each, world_size=2, local_world_size=2) for each in sample.ranks[:2]]
