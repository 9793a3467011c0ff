"""Where a broker under torture keeps its data: an XFS on a loop device, backed by a tmpfs or by a folder. Everything is
mounted in the namespace of this process, so it goes when the process ends, however that happens."""
import fcntl
import os
import struct
import subprocess
import time

MIB = 1 << 20
FIEMAP, FIEMAP_SYNC = 0xC020660B, 1
LOOP_SET_STATUS64, LOOP_GET_STATUS64 = 0x4C04, 0x4C05
LOOP_INFO_BYTES, SIZE_LIMIT_AT = 232, 32
# A killed process is gone before the kernel has taken its rings apart, and they hold its files.
BUSY_SECONDS_MAX = 20


def call(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout.strip()


class Stage:
    """`folder` holds `image` (the device) and `mount`. `backing_mib`: bytes the device can really take, on a tmpfs of
    its own; None = a plain folder on the disk."""

    def __init__(self, folder, device_mib, backing_mib):
        self.folder = folder
        self.backing = os.path.join(folder, "backing")
        self.image = os.path.join(self.backing, "image")
        self.mount_point = os.path.join(folder, "mount")
        self.filler = os.path.join(self.mount_point, "filler")
        self.device_filler = os.path.join(self.backing, "filler")
        for path in (self.backing, self.mount_point):
            os.makedirs(path, exist_ok=True)
        if backing_mib is not None:
            call("mount", "-t", "tmpfs", "-o", f"size={backing_mib}m", "tmpfs", self.backing)
        self.device_mib = device_mib
        self.is_mounted = False
        self.is_frozen = False

    def format(self):
        """A new, empty file system."""
        self.unmount()
        if os.path.exists(self.image):
            os.unlink(self.image)
        with open(self.image, "wb") as image:
            image.truncate(self.device_mib * MIB)
        call("mkfs.xfs", "-q", "-f", "-K", self.image)
        self.mount()

    def mount(self):
        call("mount", "-o", "loop", "-t", "xfs", self.image, self.mount_point)
        self.is_mounted = True

    def unmount(self):
        if self.is_frozen:
            self.thaw()
        if self.is_mounted:
            deadline = time.monotonic() + BUSY_SECONDS_MAX
            while True:
                try:
                    call("umount", self.mount_point)
                    break
                except RuntimeError as error:
                    if "busy" not in str(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
            self.is_mounted = False

    def close(self):
        """Best effort: the namespace takes what is left."""
        try:
            self.unmount()
        except RuntimeError as error:
            print(f"torture: {error}", flush=True)
            call("umount", "-l", self.mount_point, check=False)
        call("umount", "-l", self.backing, check=False)

    # Faults.

    def cut_power(self):
        """Nothing that is not on the device by now will ever be."""
        call("xfs_io", "-x", "-c", "shutdown", self.mount_point)

    def freeze(self):
        call("fsfreeze", "-f", self.mount_point)
        self.is_frozen = True

    def thaw(self):
        call("fsfreeze", "-u", self.mount_point)
        self.is_frozen = False

    def fill(self):
        _fill(self.filler, self.mount_point)

    def free(self):
        os.unlink(self.filler)

    def fill_device(self):
        """From now on the device takes no block that it did not take before."""
        _fill(self.device_filler, self.backing)

    def free_device(self):
        if os.path.exists(self.device_filler):
            os.unlink(self.device_filler)

    def loop_device(self):
        return call("findmnt", "-n", "-o", "SOURCE", self.mount_point)

    def limit_device(self, size):
        """Everything from `size` bytes on gives EIO; 0 = nothing does."""
        with open(self.loop_device(), "rb") as device:
            info = bytearray(LOOP_INFO_BYTES)
            fcntl.ioctl(device, LOOP_GET_STATUS64, info)
            struct.pack_into("=Q", info, SIZE_LIMIT_AT, size)
            fcntl.ioctl(device, LOOP_SET_STATUS64, info)

    def flip_bit(self, position, bit):
        """Of the device, while it is not mounted."""
        with open(self.image, "r+b") as image:
            image.seek(position)
            value = image.read(1)[0]
            image.seek(position)
            image.write(bytes([value ^ (1 << bit)]))
            image.flush()
            os.fsync(image.fileno())


def _fill(path, folder):
    """Takes all space of a file system, in ever smaller pieces."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        at, piece = 0, 64 * MIB
        while piece >= 4096:
            try:
                os.posix_fallocate(handle, at, piece)
                at += piece
            except OSError:
                piece //= 2
    finally:
        os.close(handle)


def extents(path):
    """(position in the file, position on the device, length) of each extent, as far as the file goes: space beyond its
    end is taken ahead and holds nothing."""
    with open(path, "rb") as file:
        count = 512
        request = bytearray(struct.pack("=QQLLLL", 0, 2**64 - 1, FIEMAP_SYNC, 0, count, 0) + bytes(56 * count))
        fcntl.ioctl(file, FIEMAP, request)
        size = os.fstat(file.fileno()).st_size
    mapped = struct.unpack_from("=L", request, 20)[0]
    found = [struct.unpack_from("=QQQ", request, 32 + 56 * index) for index in range(mapped)]
    return [(at, physical, min(length, size - at)) for at, physical, length in found if at < size]


def on_device(path, position):
    """Where a byte of a file lies on its device."""
    for logical, physical, length in extents(path):
        if logical <= position < logical + length:
            return physical + position - logical
    raise RuntimeError(f"{path}: byte {position} is in no extent")


def batches(path):
    """(position, base offset, bytes) of each whole record batch of a segment."""
    with open(path, "rb") as file:
        data = file.read()
    found, at = [], 0
    while at + 61 <= len(data):
        base, length = struct.unpack_from(">qi", data, at)
        total = 12 + length
        if length < 49 or at + total > len(data) or data[at + 16] != 2:
            break
        found.append((at, base, total))
        at += total
    return found
