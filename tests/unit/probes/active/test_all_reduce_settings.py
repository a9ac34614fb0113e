"""The small decisions of the all-reduce probe: addresses, variables, sizes, iterations, orders."""

from __future__ import annotations

from pathlib import Path

import pytest

from mltop.probes.active.all_reduce import collectives, options, rank
from mltop.probes.active.all_reduce.listening import (
    Address,
    chosen,
    interface_of,
    listen,
    local_addresses,
    plain,
)
from mltop.probes.active.all_reduce.options import options_of, round_of
from mltop.probes.active.all_reduce.ranks import Output
from mltop.probes.active.child import Order
from mltop.probes.active.host import available_memory_bytes
from mltop.probes.model.probe import ProbeDevice
from mltop.probes.model.units import size_words

MIB, GIB = 1 << 20, 1 << 30
NODE = [
    Address("127.0.0.1", "lo"),
    Address("172.17.0.1", "docker0"),
    Address("fd00::7", "eth0"),
    Address("10.0.0.7", "eth0"),
    Address("10.1.0.7", "ib0"),
]


@pytest.mark.parametrize(
    ("address", "interface"),
    [("10.1.0.7", "ib0"), ("::ffff:10.0.0.7", "eth0"), ("fd00::7%eth0", "eth0"), ("127.0.0.9", "lo"), ("9.9.9.9", "")],
)
def test_the_interface_of_a_route(address: str, interface: str) -> None:
    assert interface_of(address, NODE) == interface


def test_this_machine_has_addresses_and_listens() -> None:
    assert Address("127.0.0.1", "lo") in local_addresses()
    assert plain("::FFFF:127.0.0.1") == "127.0.0.1"
    with listen("127.0.0.1") as one, listen("127.0.0.1") as other:
        assert one.getsockname()[1] != other.getsockname()[1]
        assert {one.getsockname()[0], other.getsockname()[0]} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("environ", "backend", "address"),
    [
        ({}, "gloo", "10.0.0.7"),
        ({"SSH_CONNECTION": "garbage"}, "gloo", "10.0.0.7"),
        ({"SSH_CONNECTION": "192.0.2.9 51234 10.1.0.7 22"}, "gloo", "10.1.0.7"),
        ({"SSH_CONNECTION": "127.0.0.1 51234 127.0.0.1 22"}, "gloo", "10.0.0.7"),  # where nobody else would find us
        ({"SSH_CONNECTION": "192.0.2.9 51234 198.51.100.7 22"}, "gloo", "10.0.0.7"),  # an address that went
        ({"GLOO_SOCKET_IFNAME": "ib0", "SSH_CONNECTION": "192.0.2.9 51234 10.0.0.7 22"}, "gloo", "10.1.0.7"),
        ({"NCCL_SOCKET_IFNAME": "ib"}, "nccl", "10.1.0.7"),
        ({"NCCL_SOCKET_IFNAME": "=ib"}, "nccl", "10.0.0.7"),  # there is none of that name
        ({"NCCL_SOCKET_IFNAME": "^eth,lo"}, "nccl", "10.1.0.7"),
        ({"NCCL_SOCKET_IFNAME": "ib0"}, "gloo", "10.0.0.7"),
    ],
)
def test_the_leader_is_at_one_address(environ: dict[str, str], backend: str, address: str) -> None:
    assert chosen(environ, backend, "no-such-node.invalid", NODE).address == address


def test_loopback_is_where_there_is_nothing_else() -> None:
    assert chosen({}, "gloo", "no-such-node.invalid", NODE[:1]) == Address("127.0.0.1", "lo")
    ssh = {"SSH_CONNECTION": "127.0.0.1 1 127.0.0.2 22"}
    assert chosen(ssh, "gloo", "no-such-node.invalid", NODE[:1]) == Address("127.0.0.2", "lo")
    assert chosen({}, "gloo", "no-such-node.invalid", NODE[:2]).interface == "docker0"


def test_the_leader_is_where_its_name_leads() -> None:
    addresses = [Address("10.0.0.7", "eth0"), Address("127.0.0.2", "dummy0"), Address("10.1.0.7", "ib0")]
    assert chosen({}, "gloo", "127.0.0.2", addresses).address == "127.0.0.2"


def test_one_node_alone_has_nothing_for_others_to_connect_to() -> None:
    for backend, name, value in (("gloo", "GLOO_SOCKET_IFNAME", "lo"), ("nccl", "NCCL_SOCKET_IFNAME", "=lo")):
        assert options.added_settings("lo", backend, {name: "eth0"})[name] == value


def test_what_the_user_has_set_is_never_overridden(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("# site\nNCCL_SOCKET_IFNAME=ib0 # fast\nNCCL_IB_HCA = mlx5_0\nPATH=/bin\n\n")
    found = options.conf_settings({}, [str(tmp_path / "none"), str(conf)])
    assert found == {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_HCA": "mlx5_0"}
    assert options.conf_settings({"NCCL_CONF_FILE": str(conf)}, []) == found
    ours = options.inherited_settings({"NCCL_DEBUG": "WARN", "HOME": "/root", "NCCL_IB_HCA": "mlx5_1"}, found)
    assert ours == {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_HCA": "mlx5_1", "NCCL_DEBUG": "WARN"}
    assert options.added_settings("eth0", "nccl", {**ours, "NCCL_RAS_ENABLE": "1"}) == {}
    assert options.added_settings("eth0", "nccl", {}) == {
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_RAS_ENABLE": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": options.SUBSYSTEMS,
    }
    assert options.added_settings("eth0", "gloo", {}) == {"GLOO_SOCKET_IFNAME": "eth0"}
    assert options.added_settings("", "gloo", {}) == {}


def test_injected_delays() -> None:
    assert options.injected_delays("") == {}
    assert options.injected_delays("1:0.03,12:2") == {1: 0.03, 12: 2.0}
    for wrong in ("1", "a:b", "1:2:3"):
        with pytest.raises(ValueError):
            options.injected_delays(wrong)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *[(100, "100 B"), (32 << 10, "32 KiB"), (MIB, "1 MiB"), (256 * MIB, "256 MiB")],
        *[(3 * MIB // 2, "1.5 MiB"), (GIB, "1 GiB")],
    ],
)
def test_sizes_in_words(size: int, text: str) -> None:
    assert size_words(size) == text
    assert collectives.stage_of("all-reduce", size) == f"measure {text}"
    assert collectives.stage_of("all-gather", size) == f"measure all-gather {text}"


def test_sizes_take_at_most_half_of_the_memory_with_all_ranks() -> None:
    assert collectives.too_big([MIB, GIB], 16 * GIB, 4) == {}
    assert collectives.too_big([MIB, GIB], 16 * GIB - 1, 4) == {
        GIB: "1 GiB for each of 4 ranks (2 buffers each) does not fit into half of the available memory (8 GiB)"
    }
    assert collectives.too_big([1 << 60], None, 4) == {}  # unknown refuses nothing
    assert list(collectives.too_big([MIB, GIB], 3 * GIB)) == [GIB]
    available = available_memory_bytes()
    assert available is not None and 0 < available < 1 << 50


@pytest.mark.parametrize(("typical_s", "count"), [(0.001, 20), (0.1, 10), (0.19, 5), (10.0, 5), (0.0, 20)])
def test_iterations_by_budget(typical_s: float, count: int) -> None:
    assert collectives.iterations(typical_s, 1.0) == count


def test_a_size_that_cannot_be_done_in_time_is_left_out() -> None:
    assert collectives.fits(0.5, 8.0)
    assert not collectives.fits(3.0, 8.0)


@pytest.mark.parametrize(
    ("version", "takes"),
    [
        *[("2.4.1+cu121", True), ("2.6.0+cu124", True), ("2.6.1", False), ("2.7.0+cu128", False)],
        *[("2.7.1", True), ("2.13.0+cpu", True), ("2.8.0a0+git1234", True)],
    ],
)
def test_versions_that_hang_with_a_device_id_do_not_get_one(version: str, takes: bool) -> None:
    assert rank.takes_device_id(version) is takes


def test_the_first_line_says_what_happened() -> None:
    text = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:4711\nmore"
    assert rank.first_line(text) == "Connection closed by peer [10.0.0.3]:4711"
    assert rank.first_line("\n\nCUDA error: out of memory\n") == "CUDA error: out of memory"
    assert rank.first_line("") == ""


def test_an_order_has_defaults_for_one_node() -> None:
    found = options_of(Order("all_reduce", "h01", [ProbeDevice("cpu", kind="cpu")], {"ranks": 4}))
    assert (found.backend, found.ranks, found.alone) == ("gloo", 4, True)
    assert found.device(3).uuid == "cpu"
    gpus = [ProbeDevice(f"GPU-{index}", index) for index in range(2)]
    on_gpus = options_of(Order("all_reduce", "h01", gpus, {"backend": "nccl"}))
    assert on_gpus.ranks == 2 and on_gpus.device(1).uuid == "GPU-1"
    with pytest.raises(ValueError, match="MIG"):
        options_of(Order("all_reduce", "h01", [ProbeDevice("MIG-1", kind="mig")], {"backend": "nccl"}))


def test_a_round_is_checked() -> None:
    told = {"round": 2, "ranks": {"h01": 2}, "groups": [["h01"]], "sizes_bytes": [MIB], "budget_s": 0.5, "work": True}
    found = round_of(told)
    assert (found.round, found.collectives, found.work) == (2, ["all-reduce"], True)
    for wrong in ({"collectives": ["broadcast"]}, {"sizes_bytes": None}, {"groups": 3}, {"ranks": 7}):
        with pytest.raises(ValueError):
            round_of({**told, **wrong})


def test_nccl_says_its_settings_once_and_its_warnings(capfd: pytest.CaptureFixture[str]) -> None:
    output = Output(8, is_nccl=True)
    for local in (0, 1):
        for _ in range(3):
            output.line(local, f"h01:{local}:99 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB")
    output.line(1, "h01:1:99 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer")
    output.line(0, "something else")
    said = capfd.readouterr().out.splitlines()
    assert len(said) == 2
    assert '"rank":8' in said[0] and '"settings":' in said[0] and "NET/IB : Using" in said[0]
    assert '"rank":9' in said[1] and "NCCL WARN" in said[1] and "settings" not in said[1]
