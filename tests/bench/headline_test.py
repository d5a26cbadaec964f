"""headline.py end to end: the program on the CPU, a peer that says known figures, and peers that fail in every way there is."""
import array, json, os, signal, stat, subprocess, sys, tempfile, time, unittest
import xml.dom.minidom

BENCH = os.path.abspath("tools/bench")
sys.path.insert(0, BENCH)
import headline, headline_table
from peers import llmc

PROGRAM = os.path.abspath("tools/cli/millrace_cpu")
TINY = ["model.layers=2", "sharding.blocks_per_unit=1", "model.d_model=64", "model.heads=2", "model.ffn=128", "model.vocab=250", "model.seq_len=32"]

# Stands for Python with torch: says what torch_bench.py would say of the variant that it is asked for.
PEER = """#!/usr/bin/env python3
import json, os, sys, time
arguments = dict(zip(sys.argv[3::2], sys.argv[4::2]))
config = json.load(open(sys.argv[2]))
m, variant, sdpa = config["model"], arguments["--variant"], arguments["--sdpa"]
d, f, v = m["d_model"], m["ffn"], m["vocab"]
parameters = v * d + m["seq_len"] * d + m["layers"] * (4 * d * d + 2 * d * f + 9 * d + f) + 2 * d
steps = {"compile": {"cudnn": 40.0, "flash": 20.0, "math": 1.0}, "graphs": {"flash": 10.0}, "eager": {"flash": 5.0}}.get(variant, {}).get(sdpa)
with open(os.environ["ORDER"], "a") as order:
    order.write(variant + " " + sdpa + " nvls " + os.environ["NCCL_NVLS_ENABLE"] + "\\n")
if variant == "step_graph":
    print(json.dumps(dict(variant=variant, error="out of memory: 7 GiB")))
    sys.exit(1)
if variant == "autotune":
    time.sleep(600)
count = int(arguments["--steps"])
print("a line that is no JSON")
print(json.dumps(dict(variant=variant, torch="9.9", cudnn=1, parameters=parameters + (variant == "eager"), step_ms=[steps + i for i in range(count)], host_us=7.0,
                      loss_last=float("nan") if sdpa == "math" else 9.5, peak_allocated_bytes=3 << 30, peak_reserved_bytes=4 << 30, device_used_bytes=5 << 30)))
"""

# Stands for the program: fails to train, plans as the program does.
BROKEN = """#!/bin/sh
if [ "$1" = bench ]; then echo "millrace: out of memory: 9 GiB asked for" >&2; exit 3; fi
exec {program} "$@"
"""


def script(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return path


def run(folder, *arguments, binary=PROGRAM):
    """(exit code, table.json, table.md, what the peers were asked, stderr)."""
    peer, order = script(folder, "peer", PEER), os.path.join(folder, "order")
    out = os.path.join(folder, "out")
    command = [sys.executable, "-B", os.path.join(BENCH, "headline.py"), *arguments, "--out", out, "--python", peer, "--binary", binary, "--steps", "5",
               "--warmup", "1", "--oversubscribe"] + (["--device", "cpu"] if "--device" not in arguments else [])
    for item in TINY:
        command += ["--set", item]
    done = subprocess.run(command, env=dict(os.environ, ORDER=order, OPENBLAS_NUM_THREADS="1"), capture_output=True, text=True, timeout=240)
    with open(os.path.join(out, "table.json")) as file:
        data = json.load(file)
    with open(os.path.join(out, "table.md")) as file:
        table = file.read()
    xml.dom.minidom.parse(os.path.join(out, "bars.svg"))
    asked = []
    if os.path.exists(order):
        with open(order) as file:
            asked = file.read().splitlines()
    return done.returncode, data, table, asked, done.stderr


def row(data, variant, sdpa=None):
    return next(r for r in data["cases"][0]["rows"] if (r["variant"], r["sdpa"]) == (variant, sdpa))


class Headline(unittest.TestCase):
    def test_rounds_are_interleaved_and_figures_follow_from_the_samples(self):
        with tempfile.TemporaryDirectory() as folder:
            code, data, table, asked, said = run(folder, "gpt2_30m_b3", "--rounds", "2", "--peers", "compile,graphs,ddp")
        self.assertEqual(code, 0, said)
        order = [(r["variant"], r["sdpa"], r["round"]) for r in data["cases"][0]["runs"]]
        self.assertEqual(order, [("millrace", None, 1), ("compile", "cudnn", 1), ("compile", "flash", 1), ("graphs", "flash", 1),
                                 ("millrace deterministic", None, 1), ("millrace", None, 2), ("compile", "flash", 2), ("graphs", "flash", 2),
                                 ("millrace deterministic", None, 2)])
        self.assertEqual(asked, [f"{name} nvls 0" for name in ("compile cudnn", "compile flash", "graphs flash", "compile flash", "graphs flash")])
        graphs, ours = row(data, "graphs", "flash"), row(data, "millrace")
        # 10, 11, 12, 13, 14 twice.
        self.assertEqual([graphs[k] for k in ("step_ms_p10", "step_ms", "step_ms_p90", "rounds")], [10.0, 12.0, 14.0, 2])
        self.assertAlmostEqual(graphs["tokens_per_s_per_gpu"], 3 * 32 / 0.012)
        self.assertAlmostEqual(row(data, "compile", "cudnn")["ratio_to_best_peer"], 12 / 42)
        self.assertEqual((graphs["is_best_peer"], graphs["ratio_to_best_peer"]), (True, 1.0))
        self.assertAlmostEqual(ours["ratio_to_best_peer"], 12 / ours["step_ms"])
        samples = [t for r in data["cases"][0]["runs"] if r["variant"] == "millrace" for t in r["step_ms"]]
        self.assertEqual(len(samples), 10)
        self.assertEqual(ours["step_ms"], sorted(samples)[5])
        case = data["cases"][0]
        self.assertAlmostEqual(graphs["mfu_causal"], graphs["tokens_per_s_per_gpu"] * case["flops_per_token"]["causal"] / case["peak_flops_per_s"])
        # Ours in the same run says the same of itself.
        raw = next(r["raw"] for r in case["runs"] if r["variant"] == "millrace")
        self.assertEqual(raw["model_flops_per_token_full"], case["flops_per_token"]["full"])
        self.assertAlmostEqual(graphs["ratio_to_floor"], 12 / case["floor_ms"])
        self.assertEqual(case["floor_from"], "measured by bench")
        self.assertEqual((graphs["working_bytes"], graphs["reserved_bytes"], graphs["device_bytes"]), (3 << 30, 4 << 30, 5 << 30))
        self.assertEqual(ours["working_bytes"], raw["arena_bytes"])
        self.assertIsNone(ours["exposed_ms"])
        self.assertIn("Best peer: graphs, flash.", table)
        self.assertIn("ddp: not for 1 rank", table)

    def test_what_fails_is_a_row_and_the_rest_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            code, data, table, asked, said = run(folder, "gpt2_30m_b1", "--rounds", "2", "--sdpa", "flash", "--run-timeout-s", "20", "--peers",
                                                 "step_graph,autotune,eager,compile")
            nothing_compared, diverged, *_ = run(folder, "gpt2_30m_b1", "--rounds", "2", "--sdpa", "math", "--peers", "compile")
        self.assertEqual(code, 0, said)
        self.assertEqual([r.split()[0] for r in asked], ["step_graph", "autotune", "eager", "compile", "compile"])
        self.assertIn("out of memory: 7 GiB", row(data, "step_graph", "flash")["error"])
        self.assertEqual("no result after 20 s", row(data, "autotune", "flash")["error"])
        self.assertRegex(row(data, "eager", "flash")["error"], r"another model: \d+ parameters, ours has \d+")
        self.assertTrue(row(data, "compile", "flash")["is_best_peer"])
        self.assertEqual(table.count("**no result**"), 3)
        self.assertEqual(row(diverged, "compile", "math")["error"], "does not train: its last loss is no finite number")
        self.assertIsNone(row(diverged, "millrace")["ratio_to_best_peer"])
        self.assertEqual(nothing_compared, 1)

    def test_ours_failing_is_the_exit_code(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = script(folder, "broken", BROKEN.format(program=PROGRAM))
            code, data, table, asked, said = run(folder, "gpt2_30m_b1", "no_such_config_b1", "--rounds", "1", "--sdpa", "flash", "--peers", "compile",
                                                 binary=broken)
        with tempfile.TemporaryDirectory() as folder:
            broken = script(folder, "broken", BROKEN.format(program=PROGRAM))
            two = run(folder, "gpt2_30m_b1", "--rounds", "1", "--ranks", "2", "--peers", "none", binary=broken)
        self.assertEqual(code, 1, said)
        self.assertIn("out of memory: 9 GiB asked for", row(data, "millrace")["error"])
        self.assertEqual((two[0], [r["error"] for r in two[1]["cases"][0]["rows"]]), (1, ["out of memory: millrace: out of memory: 9 GiB asked for"] * 3))
        self.assertTrue(row(data, "compile", "flash")["ok"])
        self.assertRegex(data["not_run"][0], "no_such_config")
        self.assertIn("no_such_config", table)

    def test_several_ranks_say_what_communication_costs(self):
        with tempfile.TemporaryDirectory() as folder:
            code, data, table, asked, said = run(folder, "gpt2_30m_b1", "--ranks", "2", "--rounds", "1", "--peers", "none")
        self.assertEqual(code, 0, said)
        self.assertEqual(asked, [])
        ours, alone = row(data, "millrace"), row(data, "millrace on 1 GPU")
        self.assertAlmostEqual(ours["exposed_ms"], ours["step_ms"] - alone["step_ms"])
        worlds = {r["variant"]: r["raw"]["world"] for r in data["cases"][0]["runs"]}
        self.assertEqual(worlds, {"millrace": 2, "millrace deterministic": 2, "millrace on 1 GPU": 1})
        # On GPUs only one of the three asks for it.
        sys.path.insert(0, BENCH)
        import headline
        told = {variant: headline.execution_of(variant, "cuda", "t.json")[1] for variant in worlds}
        self.assertEqual(told, {"millrace": "execution.deterministic=false", "millrace deterministic": "execution.deterministic=true",
                                "millrace on 1 GPU": "execution.deterministic=false"})
        self.assertIn("No peer has a result.", table)

    def test_a_gpu_that_was_not_used_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            code, data, table, asked, said = run(folder, "gpt2_30m_b1", "--rounds", "1", "--peers", "none", "--device", "cuda")
        self.assertEqual((code, row(data, "millrace")["error"]), (1, "it ran on the CPU"), said)

    def test_a_program_that_cannot_be_started_is_a_row(self):
        with tempfile.TemporaryDirectory() as folder:
            code, data, table, asked, said = run(folder, "gpt2_30m_b1", "a/b_b1", "--rounds", "1", "--peers", "none")
        with tempfile.TemporaryDirectory() as folder:
            missing = run(folder, "gpt2_30m_b1", "--rounds", "1", "--peers", "none", binary="/no/such/millrace")
        self.assertEqual(code, 1, said)
        self.assertRegex(data["not_run"][0], "a case is CONFIG_bBATCH.* not 'a/b_b1'")
        self.assertEqual(missing[0], 1)
        self.assertRegex(missing[1]["not_run"][0], "/no/such/millrace: cannot be started: No such file")

    def test_arguments_that_cannot_be_are_refused_before_anything_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            file = script(folder, "file", "")
            for wrong, said in ((["--ranks", "0"], "--ranks: 0 is less than 1"), (["--rounds", "0"], "--rounds: 0 is less"),
                                (["--steps", "-1"], "--steps: -1 is less"), (["--out", file], "--out: .*: Not a directory"),
                                (["--sdpa", "cudnn,flsh"], "--sdpa: 'flsh' is none of cudnn, flash"), (["--run-timeout-s", "0"], "--run-timeout-s: 0 is not above 0")):
                done = subprocess.run([sys.executable, "-B", os.path.join(BENCH, "headline.py"), "gpt2_30m_b1", "--out", folder, *wrong],
                                      capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, said)

    def test_a_signal_ends_the_program_that_runs(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with tempfile.TemporaryDirectory() as folder:
                pid_file = os.path.join(folder, "pid")
                slow = script(folder, "slow", f"#!/bin/sh\necho $$ > {pid_file}.part; mv {pid_file}.part {pid_file}; exec sleep 300\n")
                child = subprocess.Popen([sys.executable, "-B", os.path.join(BENCH, "headline.py"), "gpt2_30m_b1", "--out", folder, "--device", "cpu",
                                          "--binary", slow], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                         env=dict(os.environ, TMPDIR=folder))
                deadline = time.monotonic() + 60
                while not os.path.exists(pid_file) and time.monotonic() < deadline:
                    time.sleep(0.05)
                with open(pid_file) as file:
                    slow_pid = int(file.read())
                child.send_signal(number)
                self.assertEqual(child.wait(30), 128 + number)
                with self.assertRaises(ProcessLookupError):
                    os.kill(slow_pid, 0)
                self.assertFalse([name for name in os.listdir(folder) if name.startswith("headline_")])

    def test_runs_that_are_there_are_not_made_again(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = ("gpt2_30m_b1", "--rounds", "1", "--sdpa", "flash", "--peers", "compile,step_graph", "--name", "here", "--commit", "abc",
                         "--earlier", os.path.join(folder, "nothing"))
            code, data, table, asked, said = run(folder, *arguments)
            again = run(folder, *arguments)
            more = run(folder, *arguments[:2], "2", *arguments[3:])
            other = run(folder, *arguments[:-3], "abd", *arguments[-2:])
            with open(os.path.join(folder, "out", "headline_here.json")) as file:
                rows = json.load(file)["rows"]
        self.assertEqual([code, again[0], more[0]], [0, 0, 0], said)
        self.assertEqual(len(asked), 2)
        self.assertEqual(again[3], asked)  # no peer was asked again, the one that failed included
        self.assertEqual([(r["variant"], r["step_ms"]) for r in again[1]["cases"][0]["runs"] if r["ok"]],
                         [(r["variant"], r["step_ms"]) for r in data["cases"][0]["runs"] if r["ok"]])
        self.assertEqual(len(more[3]), len(asked) + 1)  # round 2 of the one that works
        self.assertEqual(len(other[3]), len(more[3]) + 2)  # another commit: anew
        self.assertEqual([row["id"] for row in rows], ["gpt2_30m_b1, 1 GPU/" + label + "/1" for label in (
            "millrace", "compile (flash)", "step_graph (flash)", "millrace deterministic")])
        self.assertNotIn("alone", rows[0]["result"]["raw"]["floor"])

    def test_megatrons_wheel_is_a_peer_of_larger_cases_on_several_gpus(self):
        small, large = dict(tokens_per_step=2 * 8192, parameters=1), dict(tokens_per_step=2 * 65536, parameters=1)
        args = type("A", (), dict(ranks=2, megatron="a.whl", peers=None))
        self.assertNotIn("mfsdp_maxpool", headline.wanted_peers(args, small))
        self.assertEqual(headline.wanted_peers(args, large), [*headline.default_peers(2, large), "mfsdp_maxpool"])
        args.megatron = None
        self.assertEqual(headline.wanted_peers(args, large), headline.default_peers(2, large))
        args.peers = ["ddp"]
        self.assertEqual(headline.wanted_peers(args, large), ["ddp"])
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-B", os.path.join(BENCH, "headline.py"), "--out", folder, "--megatron", "/no/wheel"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--megatron: no file /no/wheel", done.stderr)

    def test_a_spent_budget_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            code, data, table, asked, said = run(folder, "gpt2_30m_b1", "--rounds", "1", "--peers", "compile", "--budget-s", "0")
        self.assertEqual((code, asked, data["cases"][0]["rows"]), (0, [], []), said)
        self.assertIn("of round 1 millrace, compile (cudnn), compile (flash), millrace deterministic, the budget of 0 s being spent", table)


class Parts(unittest.TestCase):
    def test_config_show_is_read_with_its_defaults(self):
        text = 'model.tied        true        default (null)\noptimizer.betas   [0.9,0.95]  default\nrun.dir           "a b"       c.json:3\n\n'
        self.assertEqual(headline.effective(text), {"model": {"tied": True}, "optimizer": {"betas": [0.9, 0.95]}, "run": {"dir": "a b"}})

    def test_floor_is_the_slower_of_device_and_wire(self):
        case = headline.Case.__new__(headline.Case)
        case.runs, case.args = [], type("A", (), {"machine": "h200"})
        kinds = [dict(seconds=s, wire_bytes=w) for s, w in ((0.25, 0), (0.5, 0), (0.125, 8), (1.0, 16))]
        case.plan = {"roofline": {"by_kind": kinds}}
        self.assertEqual(case.floor()[0], 1125.0)
        case.plan = {"roofline": {"by_kind": kinds[:3]}}
        self.assertEqual(case.floor()[0], 750.0)
        case.runs = [dict(ok=True, variant="millrace", raw={"floor_ms": 91.0})]
        self.assertEqual(case.floor(), (91.0, "measured by bench"))

    def test_llmc_gets_its_data_and_is_read(self):
        shape = dict(layers=12, d_model=768, micro_batch=2, seq_len=64, tokens_per_step=256)
        args = type("A", (), dict(warmup=2, steps=3, ranks=2))
        with tempfile.TemporaryDirectory() as folder:
            command = llmc.command("llmc", shape, {"optimizer": {"lr": 1e-3, "weight_decay": 0.1}}, args, folder)
            knobs = dict(zip(command[1::2], command[2::2]))
            self.assertEqual([knobs[k] for k in ("-e", "-b", "-t", "-d", "-x", "-z")], ["d12", "2", "64", "256", "5", "1"])
            with open(knobs["-i"], "rb") as file:
                header, tokens = array.array("i"), array.array("H")
                header.fromfile(file, 256)
                tokens.frombytes(file.read())
        self.assertEqual((list(header[:3]), len(tokens)), ([20240520, 1, 1025], 1025))
        self.assertTrue(max(tokens) < 50257 and len(set(tokens)) > 900)
        lines = [f"step    {i}/5 | loss 11.0 (+nanz)| norm 15.0 (+nanz)| lr 6.00e-04 | {140 + i}.25 ms | 38.0% bf16 MFU | 468123 tok/s" for i in range(1, 6)]
        found = llmc.read("device memory usage: 300 MiB / 900 MiB\n" + "\n".join(lines), shape, 2)
        self.assertEqual((found["step_ms"], found["device_bytes"]), ([143.25, 144.25, 145.25], 300 << 20))
        self.assertIsNone(llmc.read("nothing", shape, 2))

    def test_clocks_are_those_of_busy_gpus(self):
        lines = "0, 1980, 650.5, 100\n1, 345, 80.0, 0\n0, 1755, 690.0, 99\n0, [N/A], 1, 99\n0, 1700, 699.0, 97\n0, 19"
        self.assertEqual(headline.clocks(lines), dict(sm_mhz=1755.0, watts=690.0))
        self.assertEqual(headline.clocks("1, 345, 80.0, 0\n"), dict(sm_mhz=None, watts=None))

    def test_quantiles_are_those_of_bench(self):
        self.assertEqual([headline_table.quantile([5, 1, 4, 2, 3], q) for q in (0, 0.1, 0.5, 0.9, 1)], [1, 1, 3, 5, 5])


if __name__ == "__main__":
    unittest.main()
