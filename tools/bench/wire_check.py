#!/usr/bin/env python3
"""The bytes that the communicators count beside those that the NVLinks have counted, over 100 steps of training.

  python3 tools/bench/wire_check.py [CONFIG] [--ranks 2] [--binary bin/millrace] [--counting-test bin/peer_bytes_test] [--json]

Trains twice per transport (NCCL, then the own kernels over peers' memory), for 20 and for 120 steps, and reads each GPU's NVLink data counters
(NVML: payload sent and received, in KiB) before and after. What both runs have in common (connections, prologue, evaluation at the end) falls out of
the difference, which is 100 steps; the same difference of summary.json's counters is what the communicators say. Both directions of every GPU must
agree with them within 5%. NCCL is held to its Simple protocol: the others send flags beside the data (1/16 to 1/2 of it), which links count too.

Where the links' counters cannot be read (virtual machines) or stand still, the kernels between peers count what they store and load:
PROGRAM of --counting-test is //tests/system/cuda:peer_bytes_test, built with --config=cuda --define=count_peer_bytes=true; its figures must be equal.
For NCCL there is no such build: its row then says that nothing was compared. Which way was used stands in each row.
Exit code 0: all that was compared agrees, and something was. 1: a difference. 3: nothing could be compared.
"""
import argparse, ctypes, json, os, shutil, subprocess, sys, tempfile
import runs

TOLERANCE = 0.05
SHORT, LONG = 20, 120
TRANSPORTS = {"nccl": "off", "peers": "on"}  # execution.peer_memory
# Gathers and reductions in every microbatch, in messages large enough for the payload to be nearly all.
SETS = ["data.kind=synthetic", "train.micro_batch=4", "sharding.reshard=after_forward", "checkpoint.every=0", "execution.tune=false",
        "train.eval_every=0", "data.eval_batches=1"]

DATA_TX, DATA_RX, ALL_LINKS = 138, 139, 0xFFFFFFFF  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _RX; UINT_MAX


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t; the union is read as unsigned 64 bit."""
    _fields_ = [("field", ctypes.c_uint), ("scope", ctypes.c_uint), ("timestamp", ctypes.c_longlong), ("latency_us", ctypes.c_longlong),
                ("value_type", ctypes.c_int), ("status", ctypes.c_int), ("value", ctypes.c_ulonglong)]


class Links:
    """NVLink counters of all GPUs that NVML shows, or `trouble`: why there are none."""

    def __init__(self):
        self.trouble, self.gpus = None, []
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            self.trouble = str(error)
            return
        if self.nvml.nvmlInit_v2() != 0:
            self.trouble = "nvmlInit fails"
            return
        count = ctypes.c_uint()
        self.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self.gpus.append(handle)
        if not self.gpus:
            self.trouble = "NVML shows no GPU"
        else:
            self.read()

    def read(self):
        """[(bytes sent, bytes received)] by GPU, since some point in the past; [] with `trouble` set."""
        if self.trouble:
            return []
        values = []
        for gpu in self.gpus:
            fields = (FieldValue * 2)(FieldValue(field=DATA_TX, scope=ALL_LINKS), FieldValue(field=DATA_RX, scope=ALL_LINKS))
            status = self.nvml.nvmlDeviceGetFieldValues(gpu, 2, fields)
            bad = status or fields[0].status or fields[1].status
            if bad:
                self.trouble = f"NVML does not give the links' data counters (status {bad})"
                return []
            values.append((fields[0].value * 1024, fields[1].value * 1024))
        return values


def sent_bytes(summary):
    """What a rank's communicators say that it has sent."""
    counters = summary["counters"]
    return counters["bytes_gathered"] + counters["bytes_reduced"] + counters["bytes_all_reduced"] + counters["bytes_exchanged"]


def moved_by_links(before, after):
    return [(a[0] - b[0], a[1] - b[1]) for a, b in zip(after, before)]


def verdict(counted, long_moved, short_moved, ranks):
    """{how, equal, rows}: `counted` of each rank over the steps between both runs, beside the links' (sent, received) of each GPU in both runs."""
    rows = [(l[0] - s[0], l[1] - s[1]) for l, s in zip(long_moved, short_moved)]
    busy = [row for row in rows if max(row) > counted / 100]
    if not busy:
        return {"how": "the links' counters stand still", "equal": None, "rows": []}
    near = all(abs(moved - counted) <= TOLERANCE * counted for row in busy for moved in row)
    return {"how": "NVLink's data counters", "equal": near and len(busy) == ranks, "rows": busy}


def check(program, config, transport, links):
    """One row: what was counted per rank, what the links say, and whether they agree."""
    totals, moved = [], []
    for steps in (SHORT, LONG):
        folder = tempfile.mkdtemp(prefix="wire_")
        try:
            before = links.read()
            _, summary = program.train(config, SETS + [f"train.steps={steps}", f"execution.peer_memory={TRANSPORTS[transport]}"], folder,
                                       env={"NCCL_PROTO": "Simple"})
            moved.append(moved_by_links(before, links.read()))
        finally:
            shutil.rmtree(folder)
        totals.append(sent_bytes(summary))
    row = {"transport": transport, "steps": LONG - SHORT, "counted_bytes_per_rank": totals[1] - totals[0]}
    row.update({"how": links.trouble, "equal": None, "rows": []} if links.trouble else
               verdict(row["counted_bytes_per_rank"], moved[1], moved[0], program.ranks))
    return row


def count_in_kernels(binary):
    """The row of the build that counts in kernels: exit code 0 says that every figure is equal."""
    done = subprocess.run([binary], capture_output=True, text=True)
    ran = "assertions in" in done.stdout and "stored" in done.stdout  # a run that was skipped compares nothing
    return {"transport": "peers", "steps": 100, "how": "kernels that count what they store and load",
            "equal": done.returncode == 0 if ran or done.returncode else None, "lines": done.stdout.strip().splitlines()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config", nargs="?", default="configs/gpt2_124m.json")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--binary", default="bin/millrace")
    parser.add_argument("--counting-test")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    program, links = runs.Program(arguments.binary, arguments.ranks), Links()
    rows = [check(program, arguments.config, transport, links) for transport in TRANSPORTS]
    if arguments.counting_test and any(row["equal"] is None for row in rows):
        rows.append(count_in_kernels(arguments.counting_test))
    if arguments.json:
        print(json.dumps(rows))
    else:
        print(f"{arguments.config}, {arguments.ranks} ranks, {runs.host_of(arguments.binary)}")
        for row in rows:
            counted = f", counted {row['counted_bytes_per_rank']:,} bytes per rank" if "counted_bytes_per_rank" in row else ""
            said = {True: "equal", False: "DIFFERENT", None: "not compared"}[row["equal"]]
            print(f"{row['transport']}, {row['steps']} steps{counted}: {said} ({row['how']})")
            for sent, received in row.get("rows", []):
                print(f"    sent {sent:,} ({sent / row['counted_bytes_per_rank']:.4f}), received {received:,} "
                      f"({received / row['counted_bytes_per_rank']:.4f})")
            for line in row.get("lines", []):
                print("    " + line)
    compared = [row["equal"] for row in rows if row["equal"] is not None]
    return 3 if not compared else 0 if all(compared) else 1


if __name__ == "__main__":
    sys.exit(main())
