"""Lines that NCCL, torch and gloo print, as bug reports and NCCL's sources have them, in plain words."""

from __future__ import annotations

import pytest

from mltop.probes.judge.probes.nccl import settings, translate

_LINES = [
    (
        "kp-ddp-worker-0:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer "
        "10.216.210.236<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fd00:1148::4",
        "packets to 10.216.210.236 port 54862 were not answered (RETRY_EXC)",
        "cable",
    ),
    (
        "n1:1:2 [0] transport/net_ib/p2p.cc:688 NCCL WARN NET/IB: Got completion from peer 10.0.0.7<41763> with "
        "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  hca mlx5_0",
        "packets to 10.0.0.7 port 41763 were not answered (RETRY_EXC)",
        "cable",
    ),
    (
        "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<41763> with status=5 opcode=129 len=0",
        "the connection was torn down: an error before this one is the cause (WR_FLUSH_ERR)",
        "first error",
    ),
    (
        "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<41763> with status=77 opcode=129 len=0",
        "the connection to 10.0.0.7 port 41763 failed (status 77)",
        "first error",
    ),
    (
        "n1:1:2 [0] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found",
        "NCCL_SOCKET_IFNAME matches no interface of this node",
        "ip -br addr",
    ),
    (
        "n1:1:2 [0] os/linux.cc:288 NCCL WARN ncclOsSocketPollConnect: connect to 10.0.0.5<41763> returned "
        "Connection refused, exceeded error retry count after 35 attempts",
        "nobody answers at 10.0.0.5 port 41763: a firewall, or an interface that others do not reach",
        "NCCL_SOCKET_IFNAME",
    ),
    (
        "ubuntu:9621:9688 [3] misc/shmutils.cc:112 NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-KWfVyt (size 5967872)",
        "/dev/shm is full or too small",
        "--shm-size",
    ),
    (
        "ubuntu:9621:9688 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 "
        "bytes, error: No space left on device (28)",
        "/dev/shm is full or too small",
        "--shm-size",
    ),
    (
        "n1:1:2 [0] transport/nvls.cc:376 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size "
        "201326592 : CUDA error 1 'invalid argument'.\nThis is usually caused by a system or configuration error",
        "NVLS could not be set up: Fabric Manager or an NVSwitch is not in order",
        "NCCL_NVLS_ENABLE=0",
    ),
    (
        "n1:923:1147 [4] NCCL INFO NVLS multicast support is not available on dev 4",
        "no NVLS on these GPUs: expect the ring's figures",
        "Fabric Manager",
    ),
    (
        "user:16902:16954 [3] NCCL INFO NET/Socket : Using [0]ibs85f0:192.168.1.10<0> [1]ib0:192.168.1.11<0>",
        "NCCL goes over TCP sockets, not over InfiniBand or RoCE",
        "NCCL_IB_DISABLE",
    ),
    (
        "n1:1:2 [0] NCCL WARN NET/IB : mlx5_3:1 async fatal event: local catastrophic error",
        "port mlx5_3:1 failed: local catastrophic error",
        "cable",
    ),
    (
        "n1:1:2 [0] NCCL WARN NET/IB : mlx5_3:1 async fatal event on QP (0x7f01) qpn=1 handle=3 send_cq=1 recv_cq=2 "
        "state=6 sq_psn=1 rq_psn=2: local work queue catastrophic error",
        "port mlx5_3:1 failed: local work queue catastrophic error",
        "cable",
    ),
    (
        "n1:1:2 [0] NCCL WARN NET/IB : mlx5_3:1 Got async event : port error",
        "port mlx5_3:1 failed: port error",
        "dmesg",
    ),
    (
        "n1:1:2 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer gpu-07.lan<43210>",
        "another rank at gpu-07.lan port 43210 died or gave up first",
        "look at that node",
    ),
    (
        "n1:1:2 [0] NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1",
        "two NICs could not be connected (Connection timed out): they do not reach each other",
        "NCCL_IB_GID_INDEX",
    ),
    (
        "n1:1:2 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "memory could not be registered with the NIC (Cannot allocate memory)",
        "ulimit -l",
    ),
    (
        "n1:1:2 [0] init.cc:849 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
        "ranks 0 and 1 use the same GPU",
        "set_device",
    ),
    (
        "torch.distributed.DistStoreError: wait timeout after 4000ms, keys: /0//cpu//0/1",
        "rank 1 never joined",
        "look at rank 1",
    ),
    (
        "wait timeout after 600000ms, keys: /default_pg/0//cuda//0/13",
        "rank 13 never joined",
        "look at rank 13",
    ),
    (
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect "
        "to (172.17.0.9, 46229).",
        "the leader cannot be reached at 172.17.0.9, 46229",
        "firewall",
    ),
    (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv "
        "operation to complete",
        "gloo: the peer did not send for 4000 ms: it is stuck, or behind",
        "mltop stacks",
    ),
    (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:53412",
        "another rank at 10.0.0.7 died",
        "look at that node",
    ),
    (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Read error [10.0.0.8]:1234: "
        "Connection reset by peer",
        "another rank at 10.0.0.8 died",
        "look at that node",
    ),
    ("ConnectionResetError: [Errno 104] Connection reset by peer", "another rank died", "look at that node"),
    (
        "[rank4]:[E318 07:39:53.79 ProcessGroupNCCL.cpp:616] [Rank 4] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=610, OpType=ALLREDUCE, NumelIn=56320, NumelOut=450560, Timeout(ms)=600000) ran for 600086",
        "rank 4 waited too long in ALLREDUCE: another rank did not come to it",
        "mltop stacks",
    ),
]


@pytest.mark.parametrize(("line", "meaning", "action"), _LINES)
def test_a_line_is_told_in_plain_words(line: str, meaning: str, action: str) -> None:
    found = translate(line)
    assert found is not None
    assert found[0] == meaning
    assert action in found[1]


@pytest.mark.parametrize(
    "line",
    [
        "n1:1:2 [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7",
        "n1:1:2 [0] NCCL INFO Using network IB",
        "n1:1:2 [0] NCCL INFO NVLS multicast support is available on dev 0",
        "n1:1:2 [0] NCCL INFO comm 0x55555d812aa0 rank 11 nranks 16 cudaDev 3 - Init START",
        "",
    ],
)
def test_a_line_without_trouble_needs_no_words(line: str) -> None:
    assert translate(line) is None


def test_of_several_lines_the_first_with_trouble_counts() -> None:
    text = "Traceback (most recent call last):\n  File x\nwait timeout after 4000ms, keys: /0//cpu//0/2\nmore"
    assert (translate(text) or ("", ""))[0] == "rank 2 never joined"


_INFO = """\
n1:1:2 [0] NCCL INFO Bootstrap: Using eth0:10.7.147.73<0>
n1:1:2 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_4:1/IB [3]mlx5_5:1/IB [RO]; OOB e0:10.2.0.1<0>
n1:1:2 [0] NCCL INFO Using network IB
n1:1:2 [0] NCCL INFO NVLS multicast support is available on dev 0
n1:1:2 [0] NCCL INFO Channel 00/0 : 6[6] -> 38[6] [send] via NET/IB/1/GDRDMA
n1:1:2 [0] NCCL INFO 24 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer
"""


def test_settings_are_one_sentence() -> None:
    assert settings(_INFO.splitlines()) == [
        "NCCL 2.27.3 (CUDA 12.9), 4 NICs over InfiniBand (mlx5_[0-1,4-5]), GPU Direct RDMA, NVLS on, "
        "ring 24 channels, NVLS 16"
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", "1 NIC over RoCE (mlx5_0)"),
        ("NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP ; OOB ib0:1<0>", "1 NIC over InfiniBand with SHARP (mlx5_0)"),
        ("NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>", "over TCP sockets (eth[0-1])"),
        ("NCCL INFO Using network AWS Libfabric", "network AWS Libfabric"),
        ("NCCL INFO NVLS multicast support is not available on dev 0", "no NVLS"),
        ("NCCL INFO AllReduce: 268435456 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
         "all-reduce of 256 MiB: NVLS, Simple protocol"),
        ("NCCL INFO 1048576 Bytes -> Algo 1 proto 0 time 34.69", "collective of 1 MiB: ring, LL protocol"),
        ("NCCL INFO NCCL_IB_HCA set to mlx5_2:1,mlx5_0:1", "set in the environment: NCCL_IB_HCA=mlx5_2:1,mlx5_0:1"),
        ("NCCL INFO Channel 00/0 : 6[6] -> 38[6] [receive] via NET/Socket/1",
         "")
    ],
)  # fmt: skip
def test_one_setting(line: str, said: str) -> None:
    assert settings([line]) == ([said] if said else [])


def test_tcp_beside_unused_nics_is_said() -> None:
    lines = ["NCCL INFO NCCL_IB_HCA set to mlx5_0:1", "NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>"]
    assert settings(lines)[0] == "over TCP sockets (eth0) although there are InfiniBand or RoCE NICs"


def test_gloo_says_nothing_of_nccl() -> None:
    assert settings(["[W1122] socket.cpp:200", "hello"]) == []
