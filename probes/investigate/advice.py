"""What would help, as nodes and recordings say it: text of strangers, which users copy into a root shell.

Our own agents say one of a known set of commands. Whatever else stands in such a field is shown as somebody's words,
quoted, so that pasting it runs nothing.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import cache

from mltop.probes.model import Finding
from mltop.probes.model.news.judged import Judged
from mltop.probes.model.text import plain_text

MOST_CHARS = 300
_YAMA = "echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope"
_SENTENCES = (
    "wait (?:until|for)|try again|look (?:at|again)|have it|end (?:what|it)|fewer|allow|dump all"
    "|name (?:one|another|the|each)|please|one of|add their|free memory|reboot the|reset the GPU"
    "|the (?:same|driver|network|job)|logged in|IdentitiesOnly=|check (?:the|its|cable|NICs)|--[a-z]+(?:-[a-z]+)*"
)
# What the collectors, the agent and the probes say, as regular expressions.
_COMMANDS = (
    rf"sudo mltop(?: stacks)?(?:   \(or: {re.escape(_YAMA)}\)|, or: {re.escape(_YAMA)})?",
    r"(?:sudo mltop; in a container: start it|start the container) with --privileged, or --cap-add SYS_ADMIN where "
    r"that suffices(?:; for GPUs in MIG mode also with NVIDIA_MIG_MONITOR_DEVICES=all)?",
    r"sudo usermod -aG adm \$USER   # and log in again",
    r"run mltop on the host(?:, or start the container with (?:--pid=host|--device /dev/kmsg --cap-add SYSLOG))?",
    r"start the container with --cap-add[ =]SYS_(?:PTRACE|ADMIN)",
    rf"mltop stacks --pid \d+|{re.escape(_YAMA)}",
    r"sudo dmesg -T \| grep -i -e nvrm -e xid",
    r"end the jobs on the node, then: sudo nvidia-smi -r",
    r"give it more time: --timeout \d+",
    r"sudo journalctl -k -b",
    r"sudo cat /proc/\d+/stack",
    r"(?:end the tracer: )?kill (?:-CONT )?\d+",
    r"systemctl status (?:systemd-journald|nvidia-fabricmanager)",
    r"(?:restart the container: it gets the library anew; else )?(?:on the host: )?(?:reboot, or (?:unload all|end all "
    r"that uses the GPUs, unload the) nvidia modules and run: )?sudo modprobe nvidia",
    r"sudo nvidia-modprobe -c 0 -u",
    r"update the NVIDIA driver to \d+ or newer",
    r"(?:blacklist (?:nouveau|nova_core), then: )?(?:sudo modprobe nvidia|install the NVIDIA driver)",
    r"install the NVIDIA driver on Windows: WSL takes it from there",
    r"start the container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    r"restart the container; give it its devices by CDI so that systemctl daemon-reload does not take them again",
    r"sudo find / -xdev -name libnvidia-ml\.so\.1; add its folder to LD_LIBRARY_PATH or /etc/ld\.so\.conf\.d",
    r"ldconfig -p \| grep libnvidia-ml",
    r"run the job on Python 3\.\d+ with the GIL; for now: pip install pystack; pystack remote --no-block \d+",
    r"(?:python3 -m )?pip install (?:--force-reinstall |--upgrade )?(?:nvidia-ml-py|py-spy|psutil|'mltop\[torch\]')",
    r"once by ssh: mltop stacks -w NODE; or pip install (?:py-spy|mltop) there",
    r"once: mltop snapshot -w [\w.@:-]+ \(by ssh\) puts it into ~/\.cache/mltop, or pip install mltop there",
    r"python3 -m pip download --platform manylinux2014_\w+ --only-binary=:all: --no-deps psutil py-spy "
    r"-d [\w./@%+=:,-]+",
    r"export SPT_NOENV=1 in the job",
    r"add log_buf_len=16M to the kernel's command line",
    r"sudo systemctl start nvidia-dcgm; or start dcgm-exporter with [A-Z_, ]+ and [A-Z_]+ in its metrics file \(-f\)",
    r"uncomment DCGM_FI_PROF_SM_ACTIVE \(and the others\) in dcgm-exporter's metrics file, by default [\w./-]+ or "
    r"dcp-metrics-included\.csv, and restart it as root or with SYS_ADMIN",
    r"unset MLTOP_DCGM_EXPORTER",
    r"start dcgm-exporter on the host, and here: export MLTOP_DCGM_EXPORTER=http://HOST:9400/metrics",
    r"sudo fuser -v /dev/nvidia\*   shows who has it open; or --force",
    r"sudo nvidia-smi (?:-c DEFAULT|--gpu-reset -i \d+), or --force",
    r"sudo nvidia-smi mig -i \d+ -cgi PROFILE -C",
    r"nvidia-smi(?: -q -d COMPUTE|; a driver too old for this torch looks like that)",
    r"mltop check; (?:the kernel log has the Xid|or name the GPUs that work)",
    r"a slow or dead file system, or a busy machine: try: time python -c 'import torch'",
    r"if nobody killed it: the kernel's log says whether memory ran out \(dmesg \| grep -i 'out of memory'\)",
    r"the kernel's log may say more \(dmesg\)(?:; such a process ends only when the driver or file system answers)?",
    r"name one that has it: --torch-python PATH \(or export MLTOP_PROBE_PYTHON=PATH on the node\)",
    r"let start-up files do that in interactive shells only: \[ -t 0 \] \|\| return",
    # Of ssh's and pdsh's ends: our own words around the login.
    r"if it was reinstalled: ssh-keygen -R \w[\w.:@%-]*",
    r"ssh (?:-l \w[\w.-]* )?\w[\w.:@%-]* "
    r"(?:shows why|echo ok must print ok: look for exit, exec or a forced command"
    r"|once by hand(?:, or --accept-new|; ssh-add -l)?)",
    r"ssh -v (?:-l \w[\w.-]* )?\w[\w.:@%-]*",
    # Of `mltop doctor`.
    r"export (?:TERM=xterm-256color|LC_ALL=C\.UTF-8)|enlarge it|sudo chronyc makestep",
    r"sudo apt install (?:openssh-client|pdsh|slurm-client)",
    r"make one of ~/\.cache, /tmp or /var/tmp writable",
    r"install mltop [\w.+-]+ on the node, or use --via ssh",
    # Sentences that begin with a word that is no command, and have nothing in them that a shell would obey.
    rf"(?:{_SENTENCES})[\w ,.:/@%+=-]*",
)
# What health rules advise beside what RULES.md and NVIDIA's catalog list; "#" for numbers.
_OF_RULES = frozenset(
    (
        "set the same MTU everywhere",
        "reload nvidia-peermem after the job, with the driver's own version",
        "install and start nvidia-fabricmanager in the driver's version",
        "read its log: journalctl -u nvidia-fabricmanager",
        "check the cables and the switch; nothing, if this node has no such network",
        "check the subnet manager (sminfo)",
        "nothing, if nothing is plugged in",
        "check airflow at the transceiver",
        "nothing where no NVLink bridge is mounted; else reseat it",
        "check whether the machine is designed this way",
        "end or restart the parents: ps -eo stat,ppid | grep ^Z",
        "look at storage and driver: sudo cat /proc/#/stack",
        "the kernel's side of it: sudo cat /proc/#/stack",
        "reboot: the driver does not come back",
        "reboot the node",
        "save what its ranks can, reboot the node; if lost again, reseat it",
        "take the node out of the pool: no reset repairs this GPU",
        "connect the card's power cables",
        "end the jobs on the node, then: sudo nvidia-smi -r",
        "end its job, then: sudo nvidia-smi -r -i #",
        "finish the job, then: sudo nvidia-smi -r -i #",
        "sudo nvidia-smi -r -i #",
        "sudo nvidia-smi -i # -e #, then reset the GPU",
        "to keep it: sudo nvidia-smi -i # -e #",
        "sudo nvidia-smi -i # -pl #",
        "sudo nvidia-smi mig -i # -cgi PROFILE -C; or leave MIG mode: sudo nvidia-smi -i # -mig #",
        "if nobody wants it: sudo nvidia-smi -i # -rgc; sudo nvidia-smi -i # -rac",
        "none; more than # make it a candidate for RMA",
        "none needed; watch for more",
        "please report this",
        "if nothing may run here: sudo kill #",
        "if nothing may run here and /proc/PID/fd shows /dev/nvidia*: kill #",
        "sudo kill # (its parent); if the memory stays: sudo nvidia-smi -r -i #",
        "sudo kill # (the parents); if the memory stays: sudo nvidia-smi -r -i #",
        "sudo fuser -v /dev/nvidia#; if nobody holds it: sudo nvidia-smi -r -i #",
        "outside of this container: ps -o pid,ppid,user,etime,args -p #",
    )
)
_NUMBERS = re.compile(r"\d+(?:[ ,]\d+)*")
_LOOK_FIRST = "look for Xid lines: sudo dmesg | grep -i xid; "
NODE_SAYS = "the node says: "


@cache
def _known() -> re.Pattern[str]:
    """Compiled when it is first needed: it takes longer than loading all of this package's modules."""
    return re.compile("|".join(f"(?:{command})" for command in _COMMANDS))


def is_known(fix: str) -> bool:
    """Whether it is among what mltop itself advises."""
    return len(fix) <= MOST_CHARS and _known().fullmatch(fix) is not None


def advised(fix: str) -> str:
    """``fix`` as it may stand in parentheses behind a reason; "" for ""."""
    return fix if not fix or is_known(fix) else _quoted(fix)


def _quoted(fix: str) -> str:
    text = plain_text(fix, MOST_CHARS)
    return NODE_SAYS + shlex.quote(text) if text else ""


def advice_of_rules() -> frozenset[str]:
    """All that health rules advise, with "#" for numbers."""
    from mltop.probes.judge.health.gpu.xid_catalog import ADVISED  # loads all rules
    from mltop.probes.judge.health.registry import RULES
    from mltop.probes.judge.health.rule import OfGpus

    of_gpus = [rule.check.action.format(index=0) for rule in RULES if isinstance(rule.check, OfGpus)]
    every = (*ADVISED, *of_gpus, *[rule.action for rule in RULES])
    return _OF_RULES.union(map(_without_numbers, every))


def with_known_advice(judged: Judged, known: frozenset[str]) -> Judged:
    """What a node's own rules say, with any action quoted that no rule of ours has. ``known``: by advice_of_rules."""
    return replace(judged, findings=[_with_known_advice(finding, known) for finding in judged.findings])


def _with_known_advice(finding: Finding, known: frozenset[str]) -> Finding:
    action = _without_numbers(finding.action.removeprefix(_LOOK_FIRST))
    if finding.explains or finding.folded:  # only a watcher folds
        finding = replace(finding, explains=[], folded=[])
    if not action or action in known or is_known(finding.action):
        return finding
    return replace(finding, action=_quoted(finding.action))


def _without_numbers(action: str) -> str:
    return _NUMBERS.sub("#", action) if len(action) <= MOST_CHARS else action


def to_do(fix: str, example: bool = False) -> tuple[str, str]:
    """The label and the text of an advice on a line of its own. ``example``: it is for one of several nodes."""
    text = advised(fix)
    if text.startswith(NODE_SAYS):
        return "", text
    return "do: " if text else "", f"e.g. {text}" if text and example else text
