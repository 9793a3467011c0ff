"""The figures of docs/evidence/raft/ that are measured here: what one replica costs where there is only one."""
import pathlib
import shutil
import tempfile

from common import ROOT, instructions, output_of, run, target, write

# The commit before groups had other members.
BEFORE = "868ddc9~1"
BATCHES_FEW, BATCHES_MANY = 2_000, 12_000
EXAMPLE = "shard/examples/produce_instructions.rs"


def of_a_batch(binary, records):
    few, many = (instructions([binary, batches, records])[0] for batches in (BATCHES_FEW, BATCHES_MANY))
    return (many - few) / (BATCHES_MANY - BATCHES_FEW)


def build(source, folder):
    """As what is distributed: one unit, so that a change elsewhere does not move what is inlined."""
    run(["cargo", "build", "--quiet", "--profile", "dist", "-p", "ringlog-shard", "--example", "produce_instructions", "--target-dir", folder,
         "--manifest-path", source / "Cargo.toml"])
    return pathlib.Path(folder) / "dist/examples/produce_instructions"


def produce(out):
    """Instructions of a batch on one node, against the commit before."""
    with tempfile.TemporaryDirectory(prefix="ringlog-before-") as folder:
        before = pathlib.Path(folder) / "source"
        run(["git", "worktree", "add", "--quiet", "--detach", before, BEFORE])
        try:
            shutil.copy(ROOT / EXAMPLE, before / EXAMPLE)
            binaries = {"before": build(before, f"{folder}/target"), "now": build(ROOT, target())}
            values = {f"{name}_{records}_records": of_a_batch(binary, records)
                      for records in (1, 10) for name, binary in binaries.items()}
        finally:
            run(["git", "worktree", "remove", "--force", before])
    for records in (1, 10):
        values[f"ratio_{records}_records"] = values[f"now_{records}_records"] / values[f"before_{records}_records"]
    print(f"produce: {values}", flush=True)
    commit = output_of(["git", "rev-parse", BEFORE]).strip()
    write(out, "produce", "instructions of a batch of 1 and of 10 records of 100 B, four batches of four partitions a journal frame, "
          f"simulated driver: partition, group, log, journal and checkpoints, now and at {commit[:12]}, before groups had other members; "
          f"callgrind, runs of {BATCHES_MANY:,} and {BATCHES_FEW:,} batches subtracted", "scripts/measure.py raft --only produce",
          [{"value": f"ratio_{records}_records", "op": "<=", "limit": 1.03} for records in (1, 10)],
          values={name: round(value, 4) for name, value in values.items()})


ROWS = {"produce": produce}
