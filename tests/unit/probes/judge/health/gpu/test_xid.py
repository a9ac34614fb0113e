"""Xids and SXids: what each number means, whose GPU it is, one line per incident, and what the driver asks for."""

from __future__ import annotations

from typing import Any

import pytest

from mltop.probes.judge.health.gpu.xid_catalog import (
    ACTIONS,
    ADVICE,
    APP,
    CATALOG,
    HW,
    LAST_XID,
    QUIET,
    WARN,
    advice,
    lookup,
)
from mltop.probes.judge.health.names import slot
from mltop.probes.model import Finding, KernelEvent, Sample
from tests.builders.health_samples import judged, node_h100, xid

NOW = 100_000.0
SWITCH = "0000:07:00.0"


def _xids(*events: KernelEvent, at: float = NOW, **fields: Any) -> list[Finding]:
    return judged([node_h100(at, kernel_events=list(events), **fields)], "gpu.")


def _sxid(at: float, severity: str, text: str, code: int = 20034) -> KernelEvent:
    return KernelEvent(at, "sxid", SWITCH, code, text, severity)


def test_the_catalog_has_every_number() -> None:
    assert sorted(CATALOG) == list(range(1, LAST_XID + 1))
    for code, known in CATALOG.items():
        assert known.tier in (HW, WARN, APP, QUIET, ADVICE), code
        assert (known.do or known.bucket) in ACTIONS, code
        assert known.what.format(gpu="GPU 3"), code
        assert advice(code, 3), code


@pytest.mark.parametrize(
    ("tier", "codes"),
    [
        (
            HW,
            "46 48 62 64 74 79 95 109 110 119 120 136 140 143 144 145 146 147 148 149 150 151 155 156 158 167 171 172",
        ),
        (WARN, "54 63 92 93 94 121 137 157 160 161 168 1 61 122 125 174 176 177 999"),
        (APP, "13 31 32 43 45 68 69 39 70 80"),
        (QUIET, "37 38 44 141"),
        (ADVICE, "154"),
    ],
)
def test_how_much_a_number_matters(tier: str, codes: str) -> None:
    assert {code: lookup(int(code)).tier for code in codes.split()} == dict.fromkeys(codes.split(), tier)


def test_the_buckets_are_nvidias() -> None:
    said = {"RESTART_APP": "13 31 32 39 80 94", "RESET_GPU": "46 62 64 95 109 119 120 136 140 143 155 156 158"}
    said |= {
        "IGNORE": "37 38 43 44 63 92 121 137 141 157 160 161",
        "RESTART_BM": "79",
        "RESTART_VM": "151",
        "": "167 171",
    }
    for bucket, codes in said.items():
        assert {lookup(int(code)).bucket for code in codes.split()} == {bucket}


@pytest.mark.parametrize("code", [*sorted(CATALOG), 177, 999])
def test_each_number_is_told_by_the_rule_of_its_tier(code: int) -> None:
    found = _xids(xid(NOW - 5, code, text="X Fatal XC0" if 144 <= code <= 150 else ""))
    expected = {HW: ["gpu.xid.hw"], WARN: ["gpu.xid.warn"], APP: ["gpu.xid.app"], QUIET: ["gpu.xid.app"], ADVICE: []}
    assert [one.id for one in found] == expected[lookup(code).tier]
    for one in found:
        assert one.severity == {"hw": "critical", "warn": "warning"}.get(lookup(code).tier, "info")
        assert f"Xid {code}" in one.message
        assert one.subject == "GPU 3"
        assert one.since == NOW - 5


def test_words() -> None:
    (lost,) = _xids(xid(NOW, 79, text="pid=1234, GPU has fallen off the bus."))
    assert lost.message == "Xid 79: GPU 3 fell off the bus"
    assert lost.action.startswith("reboot the node")
    assert lost.evidence == ["NVRM: Xid (PCI:0000:61:00): 79, pid=1234, GPU has fallen off the bus."]
    (fault,) = _xids(xid(NOW, 31, pid=4711, process="python3"))
    assert fault.message == "Xid 31 on GPU 3: illegal memory access by pid 4711 (python3) – probably your code"
    (contained,) = _xids(xid(NOW, 94))
    assert contained.message.startswith("Xid 94 on GPU 3: memory error, contained; the process")
    (unknown,) = _xids(xid(NOW, 999))
    assert "not in NVIDIA's catalog" in unknown.message
    (reset,) = _xids(xid(NOW, 119))
    assert "nvidia-smi -r -i 3" in reset.action


@pytest.mark.parametrize(
    ("log", "subject"),
    [
        ("0000:61:00", "GPU 3"),
        ("0000:61:00.0", "GPU 3"),
        ("00000000:61:00.0", "GPU 3"),
        ("PCI:0000:61:00", "GPU 3"),
        ("GPU-3", "GPU 3"),
        ("0000:18:00", "0000:18:00"),
        ("0001:61:00", "0001:61:00"),
    ],
)
def test_whose_gpu_it_is(log: str, subject: str) -> None:
    (finding,) = _xids(xid(NOW, 79, subject=log))
    assert finding.subject == subject
    assert finding.message == f"Xid 79: {subject} fell off the bus"


def test_bus_ids() -> None:
    assert {slot(one) for one in ("00000000:1B:00.0", "0000:1b:00", "0000:1b:00.0", "1b:00.0")} == {"0000:1b:00"}
    assert slot("00000018:01:00.0") == slot("0018:01:00") == "0018:01:00"
    assert slot("garbage") == "garbage"


def test_a_vanished_gpu_is_known_from_before() -> None:
    gone = node_h100(NOW, kernel_events=[xid(NOW, 13)])
    gone.gpus = [one for one in gone.gpus if one.index != 3]
    (finding,) = judged([node_h100(NOW - 1), gone], "gpu.")
    assert (finding.id, finding.folded) == ("gpu.lost", ["gpu.xid.app GPU 3"])


def test_it_is_listed_for_an_hour_and_ends_with_a_reboot() -> None:
    event = xid(NOW, 62)
    assert len(_xids(event, at=NOW + 3590)) == 1
    assert _xids(event, at=NOW + 3610) == []
    assert _xids(event, at=NOW + 300, host={"uptime_s": 120.0}) == []
    assert len(_xids(event, at=NOW + 300, host={"uptime_s": 320.0})) == 1
    live = [node_h100(NOW + at, kernel_events=[event] if at >= 10 else []) for at in range(0, 4200, 300)]
    (finding,) = judged(live, "gpu.")
    assert (finding.since, finding.until) == (NOW, NOW + 3600)


def test_the_same_xid_again_is_one_line_with_a_count() -> None:
    (finding,) = _xids(*(xid(NOW - 1200 + 300 * step, 13, pid=40 + step) for step in range(4)))
    assert "4 times since 03:26:40" in finding.message
    assert len(_xids(xid(NOW - 1200, 13, 3), xid(NOW - 600, 13, 4))) == 2
    assert len(_xids(xid(NOW - 1200, 13), xid(NOW - 600, 32))) == 2


def test_kernel_log_and_nvml_report_one_and_the_same() -> None:
    (finding,) = _xids(xid(NOW - 60, 94), xid(NOW - 59, 94, source="nvml", text=""))
    assert "times" not in finding.message
    (finding,) = _xids(xid(NOW - 60, 94), xid(NOW - 59, 94))
    assert "2 times" in finding.message


def test_an_incident_is_told_by_its_gravest() -> None:
    chain = [xid(NOW - 62, 48), xid(NOW - 61, 63), xid(NOW - 60, 94), xid(NOW - 55, 43), xid(NOW - 55, 45)]
    (finding,) = _xids(*chain)
    assert (finding.id, finding.message.split(":")[0]) == ("gpu.xid.hw", "Xid 48 on GPU 3")
    assert finding.evidence[1].startswith("with it: Xid 63 (a memory row was remapped")
    assert "Xid 45" in finding.evidence[1]
    (later,) = _xids(xid(NOW - 20, 45), xid(NOW - 12, 79))
    assert later.message == "Xid 79: GPU 3 fell off the bus"
    (cleanup,) = _xids(xid(NOW - 12, 43), xid(NOW - 12, 45))
    assert cleanup.message.startswith("Xid 43")


def test_an_incident_that_grows_stays_one_line() -> None:
    """Each sample has some lines more; what was told before is part of what is told now."""
    chain = [xid(NOW, 45), xid(NOW + 1, 94), xid(NOW + 2, 95), xid(NOW + 3, 64)]
    samples = [node_h100(NOW + at, kernel_events=chain[: at + 1]) for at in range(8)]
    firing = [one for one in judged(samples, "gpu.") if one.until is None]
    assert [(one.id, one.message.split(":")[0]) for one in firing] == [("gpu.xid.hw", "Xid 95 on GPU 3")]


def test_off_the_bus_without_an_xid() -> None:
    event = KernelEvent(NOW, "off_bus", "0000:61:00.0", None, "NVRM: GPU 0000:61:00.0: GPU has fallen off the bus.")
    (finding,) = _xids(event)
    assert (finding.id, finding.message) == ("gpu.xid.hw", "Xid 79: GPU 3 fell off the bus")
    assert len(_xids(event, xid(NOW + 0.01, 79))) == 1


def test_the_driver_writes_two_lines_of_a_gpu_that_falls_off_the_bus() -> None:
    text = "NVRM: GPU 0000:61:00.0: GPU has fallen off the bus."
    line = KernelEvent(NOW - 20, "off_bus", "0000:61:00.0", None, text, source=xid(NOW, 79).source)
    for events in ([xid(NOW - 20, 79), line], [line, xid(NOW - 20, 79)]):
        (finding,) = _xids(*events)
        assert finding.message == "Xid 79: GPU 3 fell off the bus"


@pytest.mark.parametrize(
    ("severity", "text", "rule"),
    [
        ("fatal", "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)", "gpu.xid.hw"),
        ("", "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)", "gpu.xid.hw"),
        ("nonfatal", "RLW_REMAP Nonfatal XC0 i0 Link 08 (0x00000004 0x00000001)", "gpu.xid.warn"),
        ("", "RLW_REMAP Nonfatal XC0 i0 Link 08 (0x00000004 0x00000001)", "gpu.xid.warn"),
        ("", "", "gpu.xid.warn"),
    ],
)
def test_nvlink5_lines_say_how_bad_they_are(severity: str, text: str, rule: str) -> None:
    (finding,) = _xids(xid(NOW, 149, text=text, severity=severity))
    assert finding.id == rule
    assert finding.message == "Xid 149 on GPU 3: NVLink error (NETIR)" + (" on link 8" if text else "")


def test_nvml_and_the_driver_add_what_they_know() -> None:
    sick = {3: {"ecc": {"uncorrected_volatile": 2}, "remap": {"failed": True}, "recovery_action": "node_reboot"}}
    (finding,) = _xids(xid(NOW, 95), gpus=sick)
    assert finding.id == "gpu.xid.hw"
    assert finding.action == "take the node out of the pool; return the GPU (RMA)", "what failed to be repaired"
    assert "gpu.ecc.dbe_volatile GPU 3" in finding.folded
    assert sorted(finding.folded) == ["gpu.ecc.dbe_volatile GPU 3", "gpu.recovery GPU 3", "gpu.remap.failed GPU 3"]


@pytest.mark.parametrize(
    ("text", "asked", "severity"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "GPU reset", "critical"),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "node reboot", "critical"),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "drain of peer-to-peer traffic", "warning"),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "drain and GPU reset", "critical"),
    ],
)
def test_xid_154_speaks_where_nvml_does_not(text: str, asked: str, severity: str) -> None:
    event = xid(NOW, 154, text=text)
    (finding,) = _xids(event, gpus={3: {"recovery_action": None}})
    assert (finding.id, finding.severity) == ("gpu.recovery", severity)
    assert finding.message == f"GPU 3: the driver asks for: {asked}"
    assert _xids(event) == []  # NVML says "none": it was done
    done = xid(NOW + 60, 154, text="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert _xids(event, done, at=NOW + 70, gpus={3: {"recovery_action": None}}) == []


def _days(*times: float, code: int = 79, **fields: Any) -> Sample:
    events = [xid(NOW - 80_000 + time, code, **fields) for time in times]
    return node_h100(NOW, kernel_events=events)


def test_five_faults_in_a_day_suspect_the_hardware() -> None:
    (finding,) = judged([_days(0, 9000, 18_000, 27_000, 36_000)], "gpu.")
    assert (finding.id, finding.severity) == ("gpu.xid.repeat", "critical")
    assert finding.message == "GPU 3: 5 fatal Xids in 24 h (79): suspect the hardware"
    assert finding.since == NOW - 80_000 + 36_000
    assert judged([_days(0, 9000, 18_000, 27_000)], "gpu.") == []
    assert judged([_days(0, 1, 2, 3, 4, 5, 6)], "gpu.") == []  # one fault, many lines
    assert judged([_days(0, 9000, 18_000, 27_000, 36_000, code=94)], "gpu.") == []


def test_page_faults_that_follow_a_gpu_suspect_it() -> None:
    def faults(*pids_and_gpus: tuple[int | None, int]) -> list[Finding]:
        events = [
            xid(NOW - 50_000 + 5000 * step, 31, index, pid=pid) for step, (pid, index) in enumerate(pids_and_gpus)
        ]
        return judged([node_h100(NOW, kernel_events=events)], "gpu.xid.repeat")

    (finding,) = faults((11, 3), (12, 3))
    assert (finding.severity, finding.subject) == ("warning", "GPU 3")
    assert finding.message == "GPU 3: Xid 31 in 2 programs within 24 h, on no other GPU: suspect the hardware"
    assert faults((11, 3), (11, 3)) == []
    assert faults((None, 3), (None, 3)) == []
    assert faults((11, 3), (12, 3), (13, 4)) == []


def test_an_nvswitch_error_is_one_line_with_what_it_did() -> None:
    events = [
        _sxid(NOW - 10, "fatal", "SXid (PCI:0000:07:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"),
        _sxid(NOW - 10, "", "SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 48 Sub-engine instance 00"),
        _sxid(NOW - 10, "", "SXid (PCI:0000:07:00.0): 20034, Data {0x10000000}"),
        _sxid(NOW - 9, "fatal", "SXid (PCI:0000:07:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
        xid(NOW - 8, 74, 0),
        *(xid(NOW - 7, 45, index) for index in range(8)),
    ]
    (finding,) = _xids(*events)
    assert (finding.id, finding.severity, finding.subject) == ("gpu.sxid", "critical", f"NVSwitch {SWITCH}")
    assert finding.message == f"SXid 20034: fatal error of NVSwitch {SWITCH} on links 30, 48, 2 times"
    assert finding.since == NOW - 10
    assert finding.evidence[1].startswith("then Xid 74 on GPU 0, Xid 45 on GPU 0")
    (harmless,) = _xids(_sxid(NOW - 10, "nonfatal", "SXid (PCI:…): 12028, Non-fatal, Link 32 egress", 12028))
    assert (harmless.severity, harmless.message) == (
        "info",
        f"SXid 12028: non-fatal error of NVSwitch {SWITCH} on link 32",
    )
    assert _xids(_sxid(NOW - 4000, "fatal", "Link 48")) == []


def test_all_links_of_an_incident_are_named() -> None:
    """Of several lines about one GPU, or one switch, one is told: with the links of all."""
    lines = [f"NVLink: fatal error detected on link {link}(0x0, 0x0, 0x10000)" for link in (7, 3, 12, 11)]
    events = [xid(NOW - 20 + place, 74, 3, text) for place, text in enumerate(lines)]
    (finding,) = _xids(*events)
    assert "on links 3, 7, 11-12" in finding.message
    switch = [
        _sxid(NOW - 20 + place, "Fatal", f"Link {link} sourcetrack timeout error", 24007)
        for place, link in enumerate((28, 30))
    ]
    (finding,) = _xids(*switch)
    assert "on links 28, 30" in finding.message
