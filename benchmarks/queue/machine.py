"""What the numbers were measured on: kernel, processor, noise. Reads /proc only, changes nothing."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from benchmarks.queue.stats import MIB


def cpu_model() -> str:
    """The processor's name as the kernel prints it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def filesystem_of(path: Path) -> str:
    """Type of the file system that holds `path`, e.g. `tmpfs` or `ext4`."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount_point, mount_kind, *_ = line.split()
        prefix = mount_point.rstrip("/") + "/"
        if f"{path}/".startswith(prefix) and len(prefix) > len(best):
            best, kind = prefix, mount_kind
    return kind


@dataclass(frozen=True)
class CpuTime:
    """Processor seconds so far, all cores together."""

    total_s: float
    idle_s: float
    steal_s: float
    own_s: float

    @classmethod
    def now(cls) -> CpuTime:
        """The counters at this moment; `own_s` is this process and its ended children."""
        ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        per_s = os.sysconf("SC_CLK_TCK")
        _, _, _, idle, wait, _, _, steal = ticks
        return cls(
            total_s=sum(ticks) / per_s,
            idle_s=(idle + wait) / per_s,
            steal_s=steal / per_s,
            own_s=sum(os.times()[:4]),
        )

    def noise_since(self, earlier: CpuTime) -> str:
        """How much of the machine others had since `earlier`: its own processes, and its host."""
        total_s = max(self.total_s - earlier.total_s, 1e-9)
        stolen_s = self.steal_s - earlier.steal_s
        busy_s = total_s - (self.idle_s - earlier.idle_s) - stolen_s
        others_s = max(0.0, busy_s - (self.own_s - earlier.own_s))
        return (
            f"other processes used {100 * others_s / total_s:.0f} % of the processor time, "
            f"the hypervisor took {100 * stolen_s / total_s:.1f} %"
        )


@dataclass(frozen=True)
class Memory:
    """Resident memory of one process, in MiB."""

    private_mib: float
    mapped_mib: float

    @classmethod
    def of_this_process(cls) -> Memory:
        """Private (heap, stacks) and mapped (shared memory and files) pages right now."""
        fields = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
        )
        kib = {name: int(fields[name].split()[0]) for name in ("RssAnon", "RssFile", "RssShmem")}
        return cls(
            private_mib=kib["RssAnon"] * 1024 / MIB,
            mapped_mib=(kib["RssFile"] + kib["RssShmem"]) * 1024 / MIB,
        )


def describe() -> dict[str, str]:
    """Facts that a reader of the table needs to judge it."""
    return {
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "cpu": f"{cpu_model()}, {os.cpu_count()} cores",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }
