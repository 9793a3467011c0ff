"""One function a fault: a cycle under load, with what must hold during and after it. Whether the history is clean is
asked at the end of the round, for all cycles at once."""
import os
import signal
import time

import stage as staging
from world import CLOSED, PARTITIONS, RETRIABLE, Failure, summary

RESUME_SECONDS = 10.0
# What a consumer may be told of records that cannot be read: it must neither go on nor start over.
DAMAGED = {2, 56, CLOSED}
# Bytes that one sum of a sidecar covers.
SUM_BLOCK_BYTES = 65536


def kill9(world):
    world.load(5, 0.15)
    world.restart()


def reshard(world):
    world.load(10, 0.2)
    if world.random.random() < 0.5:
        stop(world)
    shards = world.random.choice([count for count in (1, 2, 3, 4) if count != world.broker.shards])
    world.broker.shards = shards
    world.restart(shards)


def stop(world):
    try:
        world.broker.stop()
    except RuntimeError as error:
        raise Failure(f"SIGTERM: {error}") from error


def powercut(world):
    world.load(5, 0.15)
    world.stage.cut_power()
    world.broker.kill()
    world.stage.unmount()
    world.stage.mount()
    world.broker.start()


def disk_full(world):
    world.load(20, 0.3)
    world.stage.fill()
    try:
        await_answer(world, "refused", lambda error: error not in (0, None), RESUME_SECONDS)
        error = world.produce()
        if error not in RETRIABLE:
            raise Failure(f"with a full disk produce answers {error}, which clients do not try again")
        readable(world, range(PARTITIONS))
    finally:
        world.stage.free()
    await_answer(world, "accepted again", lambda error: error == 0, RESUME_SECONDS)
    world.history.await_progress(5, RESUME_SECONDS)


def await_answer(world, what, accepts, seconds):
    deadline, answers = time.monotonic() + seconds, []
    while True:
        if not world.broker.is_alive():
            raise Failure("the broker ended by itself")
        error = world.produce()
        answers.append(error)
        if accepts(error):
            return
        if time.monotonic() > deadline:
            raise Failure(f"produce was not {what} within {seconds:.0f} s; last answers {answers[-5:]}")
        time.sleep(0.1)


def readable(world, partitions):
    for partition in partitions:
        error, position = world.read_all(partition)
        if error:
            raise Failure(f"partition {partition} answers {error} at offset {position}")


def write_error(world):
    """New blocks cannot be written: acknowledged or refused, but never a word that is not kept."""
    world.load(20, 0.3)
    world.stage.fill_device()
    try:
        time.sleep(0.5 + world.random.random())
        error = world.produce()
        if error not in RETRIABLE | {0, None}:
            raise Failure(f"with a device that takes no blocks produce answers {error}, which clients do not try again")
    finally:
        world.broker.kill()
        world.stage.free_device()
    world.stage.unmount()
    world.stage.mount()
    world.broker.start()


def read_error(world):
    """A part of the device cannot be read. Nobody writes meanwhile."""
    world.load(60, 0.3)
    world.history.pause()
    try:
        stop(world)
        world.broker.start()
        paths = {partition: world.segments(partition) for partition in range(PARTITIONS)}
        lying = {partition: [extent for path in files for extent in staging.extents(path)]
                 for partition, files in paths.items()}
        victim = max((partition for partition in lying if lying[partition]),
                     key=lambda partition: max(physical for _, physical, _ in lying[partition]))
        _, physical, length = max(lying[victim], key=lambda extent: extent[1])
        cut = (physical + length // 2) // 4096 * 4096
        hurt = {partition for partition in lying
                if any(physical + length > cut for _, physical, length in lying[partition])}
        for files in paths.values():
            for path in files:
                forget_cached(path)
        world.stage.limit_device(cut)
        try:
            readable(world, [partition for partition in range(PARTITIONS) if partition not in hurt])
            for partition in hurt:
                error, position = world.read_all(partition)
                if error not in DAMAGED:
                    raise Failure(f"partition {partition} answers {error} at {position}, though a part of it gives EIO")
            if not world.broker.is_alive():
                raise Failure("the broker ended by itself")
        finally:
            world.stage.limit_device(0)
        world.restart()
        readable(world, range(PARTITIONS))
    finally:
        world.history.resume()


def forget_cached(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def stall(world):
    world.load(10, 0.2)
    world.stage.freeze()
    try:
        time.sleep(0.3 + world.random.random() * 2.7)
        if not world.broker.is_alive():
            raise Failure("the broker ended by itself while the disk stood still")
    finally:
        world.stage.thaw()
    world.history.await_progress(5, RESUME_SECONDS)


NOMINAL_BYTES = 320 << 20


def memory(world):
    """The limit is squeezed below what the broker holds; it may be killed then, and only then."""
    group = world.broker.group
    write(group, "memory.limit_in_bytes", NOMINAL_BYTES)
    world.load(20, 0.3)
    if not world.broker.is_alive():
        raise Failure(f"the broker ended by itself within {NOMINAL_BYTES >> 20} MiB")
    held = resident_bytes(world.broker.pid)
    try:
        write(group, "memory.limit_in_bytes", max(8 << 20, int(held * (0.5 + world.random.random()))))
    except OSError:
        pass  # The kernel cannot reclaim so much at once; the pressure was there.
    time.sleep(0.1 + world.random.random() * 0.5)
    write(group, "memory.limit_in_bytes", NOMINAL_BYTES)
    if not world.broker.is_alive():
        world.broker.process.wait()
        if world.broker.process.returncode != -signal.SIGKILL:
            raise Failure(f"out of memory the broker ended with {world.broker.process.returncode}")
        world.broker.start()
    world.history.await_progress(5, RESUME_SECONDS)


def write(group, name, value):
    with open(os.path.join(group, name), "w", encoding="ascii") as file:
        file.write(str(value))


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def bitflip(world):
    """One bit of one segment. The last cycle of its round: what is damaged stays damaged."""
    world.load(60, 0.3)
    # Segments take what the journal holds when the broker is asked to end.
    stop(world)
    if world.random.random() < 0.3:
        world.broker.start()
        world.load(20, 0.2)
        world.broker.kill()
    filled = [(partition, path) for partition in range(PARTITIONS) for path in world.segments(partition)
              if len(staging.batches(path)) >= 2]
    if not filled:
        raise Failure("no segment holds two batches after the load")
    partition, path = world.random.choice(filled)
    batches = staging.batches(path)
    position, offset, size = world.random.choice(batches)
    byte = position + world.random.randrange(size)
    at = staging.on_device(path, byte)
    # Where each batch of a block looks sound and the block does not, all that reach into it are refused.
    block = byte - byte % SUM_BLOCK_BYTES
    first = min(begin for where, begin, length in batches if where + length > block)
    world.stage.unmount()
    world.stage.flip_bit(at, world.random.randrange(8))
    world.stage.mount()
    world.broker.start()
    time.sleep(0.5)
    if world.produce() != 0:
        raise Failure(f"another topic's partition cannot be written after a flipped bit in partition {partition}")
    answer = world.fetch_error(partition, offset)
    world.final = world.history.finish()
    if not world.broker.is_alive():
        raise Failure("the broker ended by itself")
    if world.judge()["is_clean"] and not world.final["unread"]:
        return  # Mended from the journal.
    where = f"a flipped bit at offset {offset} of partition {partition}"
    verdict = world.judge([{"op": "damaged", "partition": partition, "offset": first}])
    if not verdict["is_clean"]:
        raise Failure(f"{where}: {summary(verdict)}; {world.final}")
    if answer not in DAMAGED:
        raise Failure(f"{where}: a fetch there answers {answer}, as if nothing were wrong; {world.final}")
    if set(world.final["unread"]) - {partition}:
        raise Failure(f"{where}: other partitions are not read to their end; {world.final}")


# Fault -> (function, cycles of a round, device MiB, backing MiB or None for the disk).
FAULTS = {
    "kill9": (kill9, 100, 2048, 2200),
    "reshard": (reshard, 25, 2048, 2200),
    "powercut": (powercut, 100, 2048, 2200),
    "disk-full": (disk_full, 4, 320, 400),
    "write-error": (write_error, 4, 1024, 700),
    "read-error": (read_error, 4, 1024, 1100),
    "bitflip": (bitflip, 1, 512, 600),
    "stall": (stall, 10, 1024, 1100),
    "memory": (memory, 10, 1024, None),
}
# Faults whose function ends the round by itself.
ENDS_ROUND = {"bitflip"}
