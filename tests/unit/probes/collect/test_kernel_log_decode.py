"""Published kernel lines and what they report; and lines of healthy machines, which report nothing.

The lines are from issue threads, vendors' documents and the drivers' format strings.
"""

from __future__ import annotations

from typing import Any

import pytest

from mltop.probes.collect.kernel_log.decode import DOWN, UP, decode

CASES: list[tuple[str, dict[str, Any]]] = [
    # Xid: with and without PCI:, process, name, function, MIG instance
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", {"kind": "xid", "code": 14, "subject": "0000:03:00"}),
    (
        "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        {"kind": "xid", "code": 79, "subject": "0000:05:00", "pid": None, "process": ""},
    ),
    ("NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.", {"kind": "xid", "code": 79, "pid": 0}),
    ("NVRM: Xid (PCI:0000:10:00.0): 79, GPU has fallen off the bus.", {"kind": "xid", "subject": "0000:10:00.0"}),
    (
        "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response "
        "from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).",
        {"kind": "xid", "code": 119, "subject": "0000:9b:00", "pid": 2024380, "process": "nvidia-smi"},
    ),
    (
        "NVRM: Xid (PCI:0000:38:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Global Exception on "
        "(GPC 8, TPC 5, SM 1): Multiple Warp Errors",
        {"kind": "xid", "code": 13, "subject": "0000:38:00", "process": ""},
    ),
    (
        "NVRM: Xid (PCI:0000:38:00): 43, pid=2924364, name=pt_main_thread, Ch 00000008",
        {"kind": "xid", "code": 43, "pid": 2924364, "process": "pt_main_thread"},
    ),
    (
        "NVRM: Xid (PCI:0000:63:00): 31, name=plasmashell, MMU Fault: ENGINE GR_HOST0 HUBCLIENT_ESC0 faulted",
        {"kind": "xid", "code": 31, "process": "plasmashell", "pid": None},
    ),
    (
        "NVRM: Xid (PCI:0000:03:00): 31, pid='1234', name='python3', 'Illegal memory access'",
        {"kind": "xid", "code": 31, "pid": 1234, "process": "python3"},
    ),
    (
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
        {"kind": "xid", "code": 94, "subject": "0000:01:00", "pid": 7194},
    ),
    (
        "NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception",
        {"kind": "xid", "code": 13, "subject": "0000:3b:00", "pid": 9, "process": "a"},
    ),
    (
        "NVRM: Xid (PCI:0000:01:00): 95, pid=7062, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
        {"kind": "xid", "code": 95, "pid": 7062},
    ),
    (
        "NVRM: Xid (PCI:0000:04:00): 63, Row remapping event: Rows 0x1a and 0x2b have been remapped on GPU "
        "00000000:04:00.0",
        {"kind": "xid", "code": 63, "subject": "0000:04:00", "severity": ""},
    ),
    ("NVRM: Xid (PCI:0000:02:00): 64, Row remapping failure", {"kind": "xid", "code": 64}),
    ("NVRM: Xid (PCI:0000:04:00): 69", {"kind": "xid", "code": 69}),
    ("NVRM: Xid (PCI:0000:01:00): 48, An uncorrectable double bit error", {"kind": "xid", "code": 48}),
    (
        "NVRM: Xid (PCI:0000:b9:00): 74, pid=<unknown>, name=<unknown>, NVLink: fatal error detected on link "
        "6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        {"kind": "xid", "code": 74, "severity": "fatal", "pid": None, "process": ""},
    ),
    (
        "NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 "
        "(0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
        {"kind": "xid", "code": 145, "severity": "nonfatal", "pid": 876767, "process": "ray::WorkerDict"},
    ),
    (
        "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000 "
        "0x00000000 0x00000000 0x00000000)",
        {"kind": "xid", "code": 149, "severity": "fatal", "subject": "0009:01:00"},
    ),
    (
        "NVRM: Xid (PCI:0008:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000)",
        {"kind": "xid", "code": 149, "severity": "fatal"},
    ),
    (
        "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        {"kind": "xid", "code": 154},
    ),
    # Off the bus without an Xid
    ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", {"kind": "off_bus", "subject": "0000:29:00.0"}),
    ("NVRM: GPU 18:00.0: GPU has fallen off the bus.", {"kind": "off_bus", "subject": "18:00.0"}),
    ("NVRM: GPU at 0000:02:00.0 has fallen off the bus.", {"kind": "off_bus", "subject": "0000:02:00.0"}),
    ("NVRM: GPU at PCI:0000:18:00.0 has fallen off the bus.", {"kind": "off_bus", "subject": "0000:18:00.0"}),
    (
        "NVRM: The NVIDIA GPU 0000:18:00.0\nNVRM: (PCI ID: 10de:2901) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands.",
        {"kind": "off_bus", "subject": "0000:18:00.0"},
    ),
    # NVSwitch
    (
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        {"kind": "sxid", "code": 12028, "severity": "nonfatal", "subject": "0000:05:00.0"},
    ),
    (
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack timeout error",
        {"kind": "sxid", "code": 24007, "severity": "fatal", "subject": "0000:c3:00.0"},
    ),
    (
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
        {"kind": "peermem", "subject": "nvidia-peermem"},
    ),
    # OOM
    (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/slurm/job_7,"
        "task_memcg=/slurm/job_7/step_0,task=pt_data_worker,pid=41233,uid=1000",
        {"kind": "oom", "subject": "pt_data_worker", "process": "pt_data_worker", "pid": 41233},
    ),
    (
        "Memory cgroup out of memory: Killed process 41233 (pt_data_worker) total-vm:1641388kB, anon-rss:1595164kB, "
        "file-rss:76kB, shmem-rss:0kB, UID:1000 pgtables:3204kB oom_score_adj:0",
        {"kind": "oom", "process": "pt_data_worker", "pid": 41233},
    ),
    ("Out of memory: Killed process 123, UID 48, (httpd).", {"kind": "oom", "process": "httpd", "pid": 123}),
    ("Out of memory: Killed process 12345 (postgres)", {"kind": "oom", "process": "postgres", "pid": 12345}),
    (
        "Killed process 1234 (Plex Media Server) total-vm:1000000kB, anon-rss:900000kB, file-rss:100kB",
        {"kind": "oom", "process": "Plex Media Server", "pid": 1234},
    ),
    ("Killed process 5 ((sd-pam)) total-vm:500000kB, anon-rss:4kB", {"kind": "oom", "process": "(sd-pam)", "pid": 5}),
    # Crashes
    (
        "pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4",
        {
            "kind": "segfault",
            "process": "pt_main_thread",
            "pid": 2536443,
            "code": 11,
            "subject": "pt_main_thread",
            "text": "pt_main_thread[2536443]: segfault",
        },
    ),
    (
        "ray::Worker [x][71]: segfault at 0 ip 00007f80f5f85ad8 sp 00007fff5fa61318 error 4 in libc.so.6"
        "[167ad8,7f80f5e44000+156000] likely on CPU 0 (core 0, socket 0)",
        {
            "kind": "segfault",
            "process": "ray::Worker [x]",
            "pid": 71,
            "text": "ray::Worker [x][71]: segfault in libc.so.6",
        },
    ),
    (
        "traps: python[4711] general protection fault ip:7f2a41 sp:7ffd33 error:0 in libtorch_cpu.so[7f2a41+9000]",
        {
            "kind": "segfault",
            "process": "python",
            "pid": 4711,
            "code": 11,
            "text": "python[4711]: general protection in libtorch_cpu.so",
        },
    ),
    ("traps: a[7] trap divide error ip:4 sp:7 error:0 in a[4+1]", {"kind": "segfault", "pid": 7, "code": 8}),
    ("traps: a[7] trap invalid opcode ip:4 sp:7 error:0 in a[4+1]", {"kind": "segfault", "pid": 7, "code": 4}),
    # Hung tasks and lockups
    (
        "INFO: task jfsmount:136986 blocked for more than 120 seconds.",
        {"kind": "hung_task", "process": "jfsmount", "pid": 136986},
    ),
    (
        "INFO: task kworker/u8:2:1234 blocked for more than 241 seconds.",
        {"kind": "hung_task", "process": "kworker/u8:2", "pid": 1234},
    ),
    (
        "INFO: task python3:88 blocked in I/O wait for more than 122 seconds.",
        {"kind": "hung_task", "process": "python3", "pid": 88},
    ),
    (
        "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]",
        {"kind": "soft_lockup", "process": "python3", "pid": 2254956},
    ),
    (
        "watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [cuda-EvtHandlr:2255424]",
        {"kind": "soft_lockup", "process": "cuda-EvtHandlr", "pid": 2255424},
    ),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 12", {"kind": "soft_lockup", "subject": "cpu 12"}),
    # NFS
    ("nfs: server 7.247.192.16 not responding, timed out", {"kind": "nfs", "subject": "7.247.192.16"}),
    (
        "nfs: server nfs-prod-01.example.com not responding, still trying",
        {"kind": "nfs", "subject": "nfs-prod-01.example.com"},
    ),
    ("nfs: server 7.247.192.16 OK", {"kind": "nfs_ok", "subject": "7.247.192.16"}),
    # mlx5
    (
        "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).",
        {"kind": "mlx5", "subject": "0000:5c:00.0"},
    ),
    (
        "mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, Cable error, High Temperature",
        {"kind": "mlx5"},
    ),
    (
        "mlx5_core 0000:01:00.0: wait_func_handle_exec_timeout:1119:(pid 4711): cmd[0]: DESTROY_EQ(0x302) timeout. "
        "Will cause a leak of a command resource",
        {"kind": "mlx5", "subject": "0000:01:00.0"},
    ),
    (
        "mlx5_core 0000:81:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
        {"kind": "mlx5", "subject": "0000:81:00.0"},
    ),
    (
        "mlx5_core 0000:81:00.0: print_health_info:424:(pid 0): synd 0x8: unrecoverable hardware error",
        {"kind": "mlx5", "subject": "0000:81:00.0"},
    ),
    # Links
    ("mlx5_core 0000:5c:00.0 ens3f0np0: Link down", {"kind": "link", "subject": "ens3f0np0", "code": DOWN}),
    ("mlx5_core 0000:5c:00.0 ens3f0np0: Link up", {"kind": "link", "subject": "ens3f0np0", "code": UP}),
    ("e1000e: eth1 NIC Link is Down", {"kind": "link", "subject": "eth1", "code": DOWN}),
    (
        "igc 0000:03:00.0 enp3s0: NIC Link is Up 2500 Mbps Full Duplex, Flow Control: RX/TX",
        {"kind": "link", "subject": "enp3s0", "code": UP},
    ),
    ("tg3 0000:02:00.0 eth0: Link is down", {"kind": "link", "subject": "eth0", "code": DOWN}),
    (
        "bond0: (slave ens1f0): link status definitely down, disabling slave",
        {"kind": "link", "subject": "ens1f0", "code": DOWN},
    ),
    (
        "bond0: link status definitely down for interface eth1, disabling it",
        {"kind": "link", "subject": "eth1", "code": DOWN},
    ),
    ("systemd-networkd[1021]: ib6: Lost carrier", {"kind": "link", "subject": "ib6", "code": DOWN}),
    ("systemd-networkd[1021]: ib6: Gained carrier", {"kind": "link", "subject": "ib6", "code": UP}),
    # Disks
    ("EXT4-fs (md0): Remounting filesystem read-only", {"kind": "remount_ro", "subject": "md0"}),
    ("BTRFS: Remounting filesystem read-only", {"kind": "remount_ro", "subject": ""}),
    ("BTRFS info (device sdb1): forced readonly", {"kind": "remount_ro", "subject": "sdb1"}),
    (
        "Buffer I/O error on dev dm-0, logical block 1308098575, lost async page write",
        {"kind": "disk_io", "subject": "dm-0"},
    ),
    (
        "blk_update_request: I/O error, dev sdb, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 0",
        {"kind": "disk_io", "subject": "sdb"},
    ),
    ("critical medium error, dev nvme3n1, sector 117 op 0x0:(READ)", {"kind": "disk_io", "subject": "nvme3n1"}),
    (
        "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller",
        {"kind": "disk_io", "subject": "nvme4"},
    ),
    ("nvme nvme0: I/O 24 QID 5 timeout, aborting", {"kind": "disk_io", "subject": "nvme0"}),
    ("nvme nvme4: Disabling device after reset failure: -19", {"kind": "disk_io", "subject": "nvme4"}),
    ("nvme nvme2: controller is down; will reset: CSTS=0xffffffff", {"kind": "disk_io", "subject": "nvme2"}),
    ("block nvme0n1: no available path - failing I/O", {"kind": "disk_io", "subject": "nvme0n1"}),
    ("md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.", {"kind": "disk_io", "subject": "nvme0n1p1"}),
    ("md/raid1:md1: Disk failure on sda1, disabling device.", {"kind": "disk_io", "subject": "sda1"}),
    ("EXT4-fs (dm-0): I/O error while writing superblock", {"kind": "disk_io", "subject": "dm-0"}),
    (
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
        {"kind": "disk_io", "subject": "sda1"},
    ),
    ("XFS (nvme1n1): Filesystem has been shut down due to log error (0x2).", {"kind": "disk_io", "subject": "nvme1n1"}),
    # PCIe
    (
        "mlx5_core 0000:c1:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at "
        "0000:c0:01.1 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)",
        {"kind": "pcie_limited", "subject": "0000:c1:00.0"},
    ),
    (
        "pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0",
        {"kind": "aer", "subject": "0000:00:03.0", "severity": "fatal"},
    ),
    (
        "pcieport 0000:16:01.0: AER: Uncorrectable (Fatal) error message received from 0000:17:00.0",
        {"kind": "aer", "subject": "0000:17:00.0", "severity": "fatal"},
    ),
    (
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
        {"kind": "aer", "subject": "0000:00:03.0", "severity": "fatal"},
    ),
    ("pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: id=0010", {"kind": "aer", "severity": "fatal"}),
    (
        "pcieport 0000:80:01.0: DPC: containment event, status:0x1f01 source:0x0000",
        {"kind": "aer", "subject": "0000:80:01.0"},
    ),
    # Memory and processors
    (
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x12345 offset:0x0)",
        {"kind": "mce", "subject": "MC0", "severity": "nonfatal"},
    ),
    (
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
        {"kind": "mce", "subject": "MC0", "severity": "fatal"},
    ),
    (
        "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 4: e600000000020408",
        {"kind": "mce", "subject": "CPU 2"},
    ),
    ("mce: [Hardware Error]: Machine check events logged", {"kind": "mce"}),
    ("{1}[Hardware Error]: event severity: recoverable", {"kind": "mce", "severity": "nonfatal"}),
    ("{2}[Hardware Error]: event severity: fatal", {"kind": "mce", "severity": "fatal"}),
    ("Memory failure: 0x5c3a2f: recovery action for dirty LRU page: Recovered", {"kind": "mce"}),
    (
        "MCE: Killing python3:4711 due to hardware memory corruption fault at 7f3c2a000000",
        {"kind": "mce", "process": "python3", "pid": 4711},
    ),
]

HARMLESS = [
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  560.35.03",
    "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
    "NVRM: GPU Board Serial Number: 1650124014249",
    "NVRM: GPU 0000:91:00.0: GPU serial number is 1653723052734.",
    "NVRM: GPU4 GSP RPC buffer contains function 103 (GSP_RM_ALLOC) and data 0x0000000000002081 0x0000000000000004.",
    "NVRM: A GPU crash dump has been created. If possible, please run",
    "NVRM: Xid (invalid): some error",
    "NVRM: Xid error: xyz, invalid data",
    "NVRM: NVLink link training completed",
    "nvidia-nvswitch2: open (major=510)",
    "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x50610002, 0x10100030}",
    "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
    "nvidia-peermem nv_get_p2p_free_callback:127 some other error message",
    "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "oom_reaper: reaped process 345646 (vector), now anon-rss:0kB, file-rss:0kB, shmem-rss:0",
    "Memory cgroup out of memory: Kill process 1381 (gunpowder-memho) score 1000 or sacrifice child",
    '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
    "task:jfsmount        state:D stack:    0 pid: 9831 ppid:  9614 flags:0x00000004",
    "NFS: Registering the id_resolver key type",
    "mlx5_core 0000:5c:00.0: firmware version: 28.39.1002",
    "mlx5_core 0000:5c:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)",
    "mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged",
    "mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5), "
    "syndrome (0x305684), err(-22)",
    "mlx5_core 0000:5c:00.0 enp92s0np0: renamed from eth3",
    "ata1: SATA link down (SStatus 0 SControl 300)",
    "ata6: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
    "pcieport 0000:64:01.0: pciehp: Slot(5): Link Down",
    "IPv6: ADDRCONF(NETDEV_CHANGE): enp0s31f6: link becomes ready",
    "systemd-networkd[812]: veth3fa1b2c: Lost carrier",
    "systemd-networkd[812]: docker0: Lost carrier",
    "docker0: port 2(veth3fa1b2c) entered disabled state",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    "EXT4-fs (sda1): re-mounted 8d2f3c1a-0000-4000-8000-000000000000 r/w. Quota mode: none.",
    "EXT4-fs (dm-0): I/O error while reading superblock",
    "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "Buffer I/O error on dev sr0, logical block 0, async page read",
    "md: raid1 personality registered for level 1",
    "nvme nvme0: 32/0/0 default/read/poll queues",
    "pcieport 0000:00:03.1: AER: Correctable error message received from 0000:00:00.0",
    "pcieport 0000:00:03.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
    "pcieport 0000:80:1b.4: AER: Uncorrectable (Non-Fatal) error message received from 0000:80:1b.4",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "mce: CPU supports 32 MCE banks",
    "EDAC MC: Ver: 3.0.0",
    "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0",
    "{1}[Hardware Error]: event severity: info",
    "ERST: Error Record Serialization Table (ERST) support is initialized.",
    "perf: interrupt took too long (2511 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
]


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[str(number) for number in range(len(CASES))])
def test_a_line_that_reports_something(text: str, expected: dict[str, Any]) -> None:
    event = decode(text, 12.5)
    assert event is not None
    assert {name: getattr(event, name) for name in expected} == expected
    assert (event.at, event.source) == (12.5, "kmsg")
    assert event.text and "\n" not in event.text


@pytest.mark.parametrize("text", HARMLESS)
def test_a_line_of_a_healthy_machine(text: str) -> None:
    assert decode(text, 0.0) is None


def test_the_tables_are_as_long_as_promised() -> None:
    assert len(CASES) >= 60 and len(HARMLESS) >= 30


def test_severity_and_link_stay_in_the_text() -> None:
    event = decode("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0)", 0.0)
    assert event is not None and "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6" in event.text


def test_text_is_cut_and_cannot_control_a_terminal() -> None:
    hostile = "NVRM: Xid (PCI:0000:05:00): 79, \x1b[2J\x9b\u202edaer\u2028 é " + "x" * 900
    event = decode(hostile, 0.0)
    assert event is not None and len(event.text) == 300 and event.text.endswith("…")
    assert event.text.isprintable()
    assert "\\x1b[2J\\x9b\\u202edaer\\u2028 é xxx" in event.text


def test_a_kill_in_a_deep_cgroup_keeps_process_and_cgroup() -> None:
    deep = "/kubepods.slice/" + "x" * 400 + "/cri-containerd-3fc28fa1.scope"
    event = decode(
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg={deep},task_memcg={deep},task=a,b,pid=7,uid=0",
        0.0,
    )
    assert event is not None and (event.process, event.pid) == ("a,b", 7)
    assert len(event.text) < 300 and event.text.endswith("task=a,b,pid=7")
    assert "constraint=CONSTRAINT_MEMCG" in event.text and "3fc28fa1.scope" in event.text
