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
    """Processor ticks since boot, all cores."""

    total: int
    steal: int

    @classmethod
    def now(cls) -> CpuTime:
        """The counters at this moment."""
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return cls(total=sum(fields), steal=fields[7])

    def steal_percent_since(self, earlier: CpuTime) -> float:
        """Share of the time since `earlier` that a hypervisor gave to somebody else."""
        return 100.0 * (self.steal - earlier.steal) / max(1, self.total - earlier.total)


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
        "kernel": f"{platform.system()} {platform.release()}",
        "cpu": f"{cpu_model()}, {os.cpu_count()} cores",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }
