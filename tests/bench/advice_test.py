"""advice.py: what is drawn beside the advice differs from it in one choice, at the same tokens per step."""
import os, subprocess, sys, unittest

sys.path.insert(0, os.path.abspath("tools/bench"))
import advice

FIRST = {"parallel.replicate": "1", "parallel.shard": "4", "parallel.context": "1", "parallel.tensor": "1", "train.micro_batch": "8", "train.accumulate": "2",
         "memory.recompute": "none", "sharding.reshard": "never", "memory.prefetch": "1"}


def tokens(plan):
    return int(plan["train.micro_batch"]) * int(plan["train.accumulate"]) * int(plan["parallel.replicate"]) * int(plan["parallel.shard"])


class Drawn(unittest.TestCase):
    def test_neighbours_differ_in_one_choice(self):
        found = advice.neighbours(FIRST, 4)
        for plan in found:
            self.assertEqual(tokens(plan), tokens(FIRST), plan)
            changed = {key for key in FIRST if plan.get(key) != FIRST[key]}
            kinds = {"mesh" if key in advice.MESH else "batch" if key.startswith("train.") else key for key in changed}
            if "mesh" in kinds:  # fewer data ranks have more sequences each; without shards there is nothing to gather
                kinds -= {"batch"}
                if plan["parallel.replicate"] == "4":
                    kinds -= {"sharding.reshard", "memory.prefetch"}
            self.assertEqual(len(kinds), 1, plan)
        meshes = {tuple(plan[key] for key in advice.MESH) for plan in found}
        self.assertEqual(meshes, {("1", "4", "1", "1"), ("1", "2", "2", "1"), ("1", "2", "1", "2"), ("2", "1", "2", "1"), ("2", "1", "1", "2"),
                                  ("1", "1", "2", "2"), ("1", "1", "4", "1"), ("1", "1", "1", "4"), ("2", "2", "1", "1"), ("4", "1", "1", "1")})
        batches = {(plan["train.micro_batch"], plan["train.accumulate"]) for plan in found if plan["parallel.shard"] == "4"}
        self.assertEqual(batches, {("8", "2"), ("16", "1"), ("4", "4"), ("2", "8")})

    def test_twelve_plans_of_a_real_model(self):
        def drawn():
            return subprocess.run([sys.executable, "-B", "tools/bench/advice.py", "configs/gpt2_124m.json", "--ranks", "2", "--machine", "h200", "--out", "none",
                                   "--binary", "tools/cli/millrace_cpu", "--draw-only"], check=True, capture_output=True, text=True).stdout
        lines = drawn().splitlines()
        self.assertEqual(len(set(line.split(": ", 1)[1] for line in lines)), 12)
        self.assertEqual(sum("advised" in line for line in lines), 5)
        self.assertEqual(drawn().splitlines(), lines)


unittest.main()
