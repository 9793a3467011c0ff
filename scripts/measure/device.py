"""An XFS on a loop device of its own, so that the kernel's counters of the device count nothing else. The mount lives in
the mount namespace of this process and goes with it."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import common

sys.path.insert(0, str(common.ROOT / "scripts/torture"))
from stage import Stage, call  # noqa: E402

SECTOR_BYTES = 512
# Of /proc/diskstats, behind the device's name (Documentation/admin-guide/iostats.rst), counted from 0.
SECTORS_WRITTEN, FLUSHES = 6, 15


def enter_namespace():
    """Starts this command again where its mounts end with it. Needs root."""
    # Not RINGLOG_...: that would be a key of the broker.
    if os.environ.get("MEASURE_NAMESPACE"):
        call("mount", "--make-rprivate", "/")
        return
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        raise SystemExit("these rows mount an XFS on a loop device: they need root and mkfs.xfs (Debian: xfsprogs)")
    os.environ["MEASURE_NAMESPACE"] = "1"
    os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])


class Device:
    """A fresh file system of `mib`, its image on the disk beside the sources."""

    def __init__(self, mib):
        self.folder = tempfile.mkdtemp(prefix="ringlog-measure-device-", dir=common.ROOT)
        self.stage = Stage(self.folder, mib, None)

    def __enter__(self):
        self.stage.format()
        self.name = pathlib.Path(self.stage.loop_device()).name
        return self

    def __exit__(self, *_):
        self.stage.close()
        shutil.rmtree(self.folder)

    def data_directory(self, name):
        return pathlib.Path(self.stage.mount_point) / name

    def counted(self):
        """(bytes written, flushes) of the device, all that was written until now included."""
        subprocess.run(["sync", "-f", self.stage.mount_point], check=True)
        for line in pathlib.Path("/proc/diskstats").read_text().splitlines():
            fields = line.split()
            if fields[2] == self.name:
                numbers = [int(field) for field in fields[3:]]
                return numbers[SECTORS_WRITTEN] * SECTOR_BYTES, numbers[FLUSHES]
        raise SystemExit(f"/proc/diskstats has no {self.name}")
