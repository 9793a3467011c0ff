"""Writes what a run of many seeds came to into the file that scripts/evidence.sh checks. scripts/simulate.sh calls it."""
import json
import os
import pathlib
import sys

from common import rounded, write

FIGURES = {
    "broker": (
        "the simulated broker with its clients: power cuts, restarts, another number of cores, faults of disk, network and "
        "clocks; histories checked. An operation is one batch acknowledged, one fetch answered or one other call that "
        "succeeded; CPU is all of the process: clients, network, disk, checker, starts and ends",
        [{"value": "seeds", "op": ">=", "limit": 310}, {"value": "operations_per_cpu_second", "op": ">=", "limit": 50_000}]),
    "storage": (
        "crash seeds: power cuts at any change of the simulated disk, subsets of unsynced sectors, torn ones too, cuts while "
        "starting, other core counts",
        [{"value": "crash_seeds", "op": ">=", "limit": 100_000}]),
    "replicas": (
        "partitions with three replicas on simulated hosts: power cuts, lost, late, doubled and damaged messages, cuts, changes "
        "of leaders and members, copies, retention and deletion",
        [{"value": "seeds", "op": ">=", "limit": 1_000}]),
}
NO_FAILURE = {"value": "failures", "op": "==", "limit": 0}


def main():
    what, path, commit, command = sys.argv[1:]
    path = pathlib.Path(path)
    figure, bounds = FIGURES[what]
    values = rounded(json.loads(os.environ["SUMMARY"]))
    if what == "storage":
        values["crash_seeds"] = values.pop("seeds")
    for empty in ("failed", "unreached"):
        if not values.get(empty, True):
            values.pop(empty)
    write(path.parent, path.stem, figure, command, [NO_FAILURE, *bounds], values=values, commit=commit)


if __name__ == "__main__":
    main()
