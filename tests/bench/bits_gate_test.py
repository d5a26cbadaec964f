"""tools/bench/bits_gate.py: a bit, a run or a counter that is another one is found, and which runs there are."""
import contextlib
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

BENCH = pathlib.Path('tools/bench').resolve()
sys.path.insert(0, str(BENCH))
import bits_gate
import gate_cases
import results

PROGRAM = os.path.abspath('tools/cli/millrace_cpu')
ONLY = '01 1x1|imported/gpt2 1x1|killed/gpt2$'  # of one rank: one that is stopped, one that is killed, one with a folder, and what they are compared with
STOPPED, KILLED, IMPORTED = 'stopped/of 01 1x1 fp32 step', 'killed/gpt2', 'imported/gpt2 1x1'
WHOLE = 'gpt2, 1 rank/01 1x1 fp32 step'

# Stands for the program. FAKE names what is another thing than it was; the losses depend on the model alone.
FAKE = r"""#!/usr/bin/env python3
import json, os, pathlib, struct, sys, time
fake, words = os.environ.get("FAKE", ""), sys.argv[1:]
sets = dict(w.split("=", 1) for w in words[3::2] if "=" in w) if words[0] == "train" else {}
if words[0] == "export":
    folder = pathlib.Path(words[words.index("--to") + 1])
    folder.mkdir()
    header = json.dumps(dict(w=dict(dtype="F32", shape=[1], data_offsets=[0, 4]), __metadata__=dict(any=fake))).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + (b"abcX" if fake == "exported" else b"abcd"))
    sys.exit(0)
run, steps = pathlib.Path(sets["run.dir"]), int(sets["train.steps"])
older = run / "checkpoints"
if fake == "fail":
    sys.exit("millrace: out of luck")
goes_on = older.exists()
if fake == "too quick":
    sys.exit(0)
older.mkdir(parents=True, exist_ok=True)
(older / "step_00000001").mkdir(exist_ok=True)
if steps == 60 and sets.get("checkpoint.every") == "1" and not goes_on:
    time.sleep(30)
lines = []
for step in range(1, steps + 1):
    at = 5.0 / (step + len(sets.get("model.family", "gpu")))
    if step == 3 and (fake == "loss" or fake == "going on" and goes_on):
        at = struct.unpack("<d", struct.pack("<Q", struct.unpack("<Q", struct.pack("<d", at))[0] + 1))[0]
    line = dict(step=step, loss=at, loss_bits="0x0", grad_norm=at / (2 if fake != "norm" else 3), skipped=int(fake == "skipped"))
    if step == steps:
        line.update(eval_loss=at + (fake == "held out"), eval_loss_bits="0x0")
    if step == 2 and fake == "not finite":
        line.update(loss=None, loss_bits="0x7fc00000")
    if step != 4 or fake != "lost step":
        lines.append(json.dumps(line))
(run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
counters = dict(bytes_cast=0, gathers=7 + (fake == "counter"))
if fake == "new counter":
    counters["more"] = 1
summary = dict(param_hash="p" + ("2" if fake == "weights" else ""), optimizer_hash="m" + ("2" if fake == "moments" else ""), counters=counters,
               measured=dict(arena_bytes=100 + (fake == "arena")), plan_hash="h" + ("2" if fake == "plan" else ""))
(run / "summary.json").write_text(json.dumps(summary) if fake != "no summary" else "{}")
"""

# What FAKE changes: the places that compare must name, of a run that is trained whole.
PLACES = {'loss': ['step 3, loss', 'step 3, norm'], 'norm': [f'step {s}, norm' for s in range(1, 6)], 'held out': ['step 5, held-out loss'],
          'skipped': [f'step {s}, skipped' for s in range(1, 6)], 'not finite': ['step 2, loss'], 'lost step': ['step 4, loss', 'step 4, norm'],
          'weights': ['weights'], 'moments': ['moments'], 'counter': ['counter gathers'], 'new counter': ['counter more'], 'arena': ['arena_bytes']}


def gate(*arguments, fake=''):
    """As the script by itself, without a process for it."""
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, 'argv', ['bits_gate.py', *arguments]), mock.patch.dict(os.environ, FAKE=fake), \
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = bits_gate.main()
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 1
            err.write(f'{e.code}\n')
    return types.SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


class Fake(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.program = os.path.join(cls.folder.name, 'program')
        pathlib.Path(cls.program).write_text(FAKE)
        os.chmod(cls.program, 0o755)
        cls.base = os.path.join(cls.folder.name, 'base.json')
        cls.first = cls.record(cls.base)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def record(cls, out, *more, fake='', only=ONLY):
        return gate('record', '--program', cls.program, '--commit', 'abc', '--out', out, '--only', only, *more, fake=fake)

    def changed(self, fake, *more, only=f'^{WHOLE}$'):
        """The file of a program in which something is another, and what record said."""
        out = os.path.join(self.folder.name, 'changed.json')
        return out, self.record(out, *more, fake=fake, only=only)

    def test_what_is_recorded(self):
        self.assertEqual(self.first.returncode, 0, self.first.stderr)
        rows = {f"{row['group']}/{row['variant']}": row for row in results.load(self.base)['rows']}
        self.assertEqual(set(rows), {WHOLE, STOPPED, 'killed/gpt2, not killed', KILLED, IMPORTED})
        result = rows[WHOLE]['result']
        self.assertEqual(result['steps'][0], dict(step=1, loss='3ff0000000000000', norm='3fe0000000000000'))
        self.assertEqual([step['step'] for step in result['steps']], [1, 2, 3, 4, 5])
        self.assertEqual({key: value for key, value in result.items() if key != 'steps'},
                         dict(weights='p', moments='m', counters=dict(bytes_cast=0, gathers=7), arena_bytes=100, plan='h'))
        self.assertEqual(set(rows[IMPORTED]['result']) - set(result), {'exported'})
        asked = json.loads(rows[STOPPED]['asked'])
        self.assertEqual((asked['before']['do'], asked['before']['sets'][-1]), ('stop', 'train.steps=2'))
        self.assertEqual(asked['sets'][:-1], json.loads(rows[WHOLE]['asked'])['sets'])  # and how it is saved

    def test_the_same_again_is_the_same(self):
        out = os.path.join(self.folder.name, 'again.json')
        self.assertEqual(self.record(out, '--jobs', '3').returncode, 0)
        done = gate('compare', self.base, out)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn('| all | 5 | 5 | 0 | 0 | 0 |', done.stdout)
        self.assertNotIn('Differences', done.stdout)

    def test_whatever_differs_is_named_with_both_values(self):
        for fake, places in PLACES.items():
            with self.subTest(fake):
                out, done = self.changed(fake)
                self.assertEqual(done.returncode, 0, done.stderr)
                done = gate('compare', self.base, out, '--only', WHOLE)
                self.assertEqual(done.returncode, 1, done.stdout)
                said = done.stdout.split('Differences, A\'s value, then B\'s:\n')[1].splitlines()
                self.assertEqual([line.rsplit(': ', 1)[0] for line in said], [f'{WHOLE}: {place}' for place in places])
                self.assertIn('| gpt2, 1 rank | 1 | 0 | 1 | 0 | 0 |', done.stdout)
        out, _ = self.changed('loss')
        self.assertIn(f'{WHOLE}: step 3, loss: 3fe6db6db6db6db7 (0.7142857142857143), then 3fe6db6db6db6db8 (0.7142857142857144)\n',
                      gate('compare', self.base, out).stdout)
        out, _ = self.changed('not finite')
        self.assertIn('(0.8333333333333334), then not finite 0x7fc00000\n', gate('compare', self.base, out).stdout)
        out, _ = self.changed('new counter')
        self.assertIn('counter more: nothing, then 1\n', gate('compare', self.base, out).stdout)
        changed = json.loads(pathlib.Path(out).read_text())
        for row in changed['rows']:
            row['result']['counters']['more'] = 0
        pathlib.Path(out).write_text(json.dumps(changed))
        self.assertNotIn('counter more', gate('compare', self.base, out).stdout)

    def test_another_folder_for_hugging_face_is_found(self):
        out, done = self.changed('exported', only=f'^{IMPORTED}$')
        self.assertEqual(done.returncode, 0, done.stderr)
        done = gate('compare', self.base, out, '--only', IMPORTED)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f'{IMPORTED}: exported: ', done.stdout)

    def test_another_plan_is_listed_and_passes(self):
        out, _ = self.changed('plan')
        done = gate('compare', self.base, out, '--only', WHOLE)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn('| all | 1 | 1 | 0 | 0 | 1 |', done.stdout)
        self.assertIn(f'{WHOLE}: plan h, then h2', done.stdout)

    def test_a_lost_run_is_found_on_either_side(self):
        out, _ = self.changed('')
        for pair, side in (((self.base, out), 'A'), ((out, self.base), 'B')):
            done = gate('compare', *pair)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f'{KILLED}: it is in {side} alone', done.stdout)
            self.assertIn('| all | 5 | 1 | 0 | 4 | 0 |', done.stdout)

    def test_a_run_that_failed_is_a_difference_also_from_itself(self):
        for fake, said in (('fail', 'exit code 1: millrace: out of luck'), ('no summary', "what it left is not understood: KeyError: 'param_hash'")):
            out, done = self.changed(fake)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(said, done.stderr)
            done = gate('compare', out, out)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f'{WHOLE}: it failed in B: {said}', done.stdout)

    def test_a_run_that_was_asked_for_something_else_is_a_difference(self):
        data = results.load(self.base)
        data['rows'][0]['asked'] = data['rows'][0]['asked'].replace('train.steps=5', 'train.steps=6')
        out = os.path.join(self.folder.name, 'asked.json')
        pathlib.Path(out).write_text(json.dumps(data))
        done = gate('compare', self.base, out)
        self.assertEqual(done.returncode, 1)
        self.assertIn('it was asked for something else', done.stdout)

    def test_what_is_gone_on_with_must_have_the_bits_of_what_was_not_stopped(self):
        _, done = self.changed('going on', only=ONLY)
        self.assertEqual(done.returncode, 1)
        for name, whole in ((STOPPED, WHOLE), (KILLED, 'killed/gpt2, not killed')):
            self.assertIn(f'{name}: not the bits of {whole}: step 3, loss: ', done.stderr)

    def test_a_run_that_ends_before_it_is_killed_is_no_killed_run(self):
        _, done = self.changed('too quick', only=f'^{KILLED}$')
        self.assertEqual(done.returncode, 1)
        self.assertIn(f'{KILLED}: 5 times it had ended before it was killed', done.stderr)

    def test_an_older_program_does_what_comes_before(self):
        older = os.path.join(self.folder.name, 'older')
        pathlib.Path(older).write_text(FAKE.replace('fake, words = os.environ.get("FAKE", "")', 'fake, words = "exported"'))
        os.chmod(older, 0o755)
        out, done = self.changed('', '--begun-by', older, only=f'{IMPORTED}|{STOPPED}')
        self.assertEqual(done.returncode, 0, done.stderr)
        done = gate('compare', self.base, out, '--only', '01 1x1|imported')
        self.assertEqual(done.stdout.count('1 rank/01'), 0)
        self.assertIn(f'{IMPORTED}: exported: ', done.stdout)  # by the older one

    def test_on_gpus_all_is_deterministic_and_nothing_is_measured(self):
        out = os.path.join(self.folder.name, 'gpu.json')
        done = self.record(out, '--gpu', only='1 GPU$')
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = results.load(out)['rows']
        self.assertEqual([(row['group'], len(row['result']['steps'])) for row in rows], [('gpt2_124m', 20), ('llama_160m', 20)])
        for case in gate_cases.on_gpus():
            self.assertLessEqual({'execution.deterministic=true', 'execution.tune=false', 'execution.backend=cuda'}, set(case.sets))
            self.assertTrue((BENCH.parent.parent / 'configs' / case.config).exists())
        done = gate('compare', self.base, out)
        self.assertEqual(done.returncode, 2)
        self.assertIn('no run in common', done.stderr)

    def test_arguments_that_cannot_be_are_refused(self):
        record = ('record', '--program', self.program, '--out', os.path.join(self.folder.name, 'x'))
        broken = os.path.join(self.folder.name, 'broken.json')
        pathlib.Path(broken).write_text('{"schema": 1}')
        other = os.path.join(self.folder.name, 'other.json')
        pathlib.Path(other).write_text(json.dumps(dict(schema=1, name='seeds_cpu', commit='a', machine='b', command='c', rows=[])))
        for wrong, said in (((*record, '--only', 'no such run'), "no run is called 'no such run'"), ((*record, '--only', '('), 'no regular expression'),
                            ((*record, '--jobs', '0'), 'at least 1'), ((*record, '--gpu', '--jobs', '2'), '1 is allowed with --gpu'),
                            (('record', '--program', '/no/program', '--out', 'x'), "'/no/program' is no program"), (('compare', self.base, broken), 'name is None'),
                            (('compare', self.base, '/no/file'), '/no/file'), (('compare', self.base, other), "'seeds_cpu'"),
                            (('compare', self.base, self.base, '--only', 'none of them'), 'no run to compare')):
            done = gate(*wrong)
            self.assertNotEqual(done.returncode, 0, wrong)
            self.assertIn(said, done.stderr, wrong)


class Runs(unittest.TestCase):
    """Which runs there are."""
    cases = gate_cases.on_cpu()

    def values(self, case):
        return dict(item.split('=', 1) for item in case.sets)

    def test_names_are_unique_and_what_is_compared_comes_first(self):
        ids = [case.id for case in self.cases]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertGreaterEqual(len(ids), 60)
        for number, case in enumerate(self.cases):
            if case.same_as:
                self.assertIn(case.same_as, ids[:number])

    def test_they_are_the_same_each_time(self):
        self.assertEqual(gate_cases.on_cpu(), self.cases)

    def test_worlds_meshes_families_and_ways_to_go_on_are_there(self):
        self.assertEqual({case.world for case in self.cases}, {1, 2, 3, 4, 8})
        meshes = {(self.values(c)['parallel.shard'], self.values(c)['parallel.replicate']) for c in self.cases}
        self.assertEqual(meshes, {tuple(mesh.split('x')) for mesh in gate_cases.FACTORS['mesh']})
        self.assertEqual({case.before['do'] for case in self.cases if case.before}, {'stop', 'kill', 'export'})
        self.assertGreaterEqual(sum(case.before is not None and case.before['world'] != case.world for case in self.cases), 4)
        self.assertEqual({self.values(case)['model.family'] for case in self.cases}, {'gpt2', 'llama', 'qwen3', 'qwen3_moe', 'nemotron_h'})

    def test_ranks_along_context_and_tensor_meet_shards_replicas_and_modes(self):
        def axes_of(case):
            values = self.values(case)
            return tuple(int(values.get(f'parallel.{axis}', 1)) for axis in ('shard', 'replicate', 'context', 'tensor'))
        met = {axes_of(case) for case in self.cases}
        self.assertLessEqual({(1, 1, 2, 1), (1, 1, 3, 1), (2, 1, 2, 1), (1, 2, 2, 1), (1, 1, 1, 3), (2, 1, 1, 2), (1, 2, 1, 2), (1, 1, 2, 2), (2, 1, 2, 2)}, met)
        split = [case for case in self.cases if axes_of(case)[2] > 1]
        for key, values in {'memory.recompute': {'norms', 'block'}, 'execution.checked': {'true'}, 'precision.compute': {'bf16'}, 'train.eval_every': {'2'},
                            'execution.graph': {'off', 'microbatch'}, 'model.family': {'gpt2', 'llama'}}.items():
            self.assertEqual({self.values(case).get(key) for case in split} & values, values, key)
        self.assertEqual({axes_of(case)[3] for case in self.cases if self.values(case).get('data.document_mask') == 'true'}, {1, 2})
        begun = [case for case in self.cases if case.before and any(item.startswith('parallel.context') for item in case.before['sets'])]
        self.assertEqual({axes_of(case)[2] for case in begun}, {1})  # and gone on with on a mesh without it

    def test_values_of_options_meet_pairwise(self):
        allowed = {'memory.allocator': {'packed', 'coloured', 'max_pool', 'fixed', 'persistent', 'dynamic'},
                   'sharding.downcast': {'after_gather', 'per_gather', 'in_gather', 'after_update'},
                   'sharding.reshard': {'never', 'after_backward', 'after_forward'}, 'sharding.grad_concat': {'every', 'last', 'direct'},
                   'sharding.grad_sync': {'every', 'last'}, 'memory.recompute': {'none', 'norms', 'block'}, 'train.accumulate': {'1', '3'},
                   'memory.prefetch': {'0', '1', '2'}, 'precision.grad_accumulate': {'fp32', 'bf16'}, 'precision.grad_wire': {'fp32', 'bf16'},
                   'execution.graph': {'off', 'microbatch', 'step'}, 'train.eval_every': {'0', '2'}, 'model.family': {'gpt2', 'llama'}}
        rows = [self.values(case) for case in gate_cases.covering_cases()]
        for (a, of_a), (b, of_b) in itertools.combinations(allowed.items(), 2):
            met = {(row.get(a), row.get(b)) for row in rows}
            self.assertEqual(set(itertools.product(of_a, of_b)) - met, set(), (a, b))
        for key, values in allowed.items():  # each is also checked
            met = {row.get(key) for row in rows if row.get('execution.checked') == 'true'} - {None}
            self.assertEqual(met, values if key != 'execution.graph' else set(), key)
        exclusive = [row for row in rows if row['sharding.grad_concat'] == 'last' and row['train.accumulate'] == '3']
        self.assertEqual({row['sharding.grad_sync'] for row in exclusive}, {'last'})

    def test_the_program_accepts_each_without_a_note(self):
        for case in self.cases:
            with self.subTest(case.id):
                self.assertEqual(self.validated(case.world, case.sets), (0, ''))
                if case.before:
                    self.assertEqual(self.validated(case.before['world'], case.before['sets']), (0, ''))
        code, said = self.validated(1, self.cases[0].sets + ['memory.slots=3'])  # it would say so
        self.assertEqual(code, 2, said)

    def validated(self, world, sets):
        words = [word for item in sets if '{run}' not in item for word in ('--set', item)]
        done = subprocess.run([PROGRAM, 'config', 'validate', '/dev/stdin', '--world', str(world), *words], input='{}', capture_output=True, text=True)
        return done.returncode, done.stderr

    def test_the_recorded_file_is_of_these_runs(self):
        rows = results.load(BENCH / 'results' / 'bits_gate_cpu.json')['rows']
        self.assertEqual([(row['group'], row['variant'], row['asked']) for row in rows], [(case.group, case.name, case.asked()) for case in self.cases])
        self.assertEqual([row['id'] for row in rows if 'error' in row], [])


class Real(unittest.TestCase):
    def test_a_program_has_the_bits_that_it_has(self):
        only = f'{STOPPED}|{IMPORTED}|data/llama text|guards/a loss'
        with tempfile.TemporaryDirectory() as folder:
            files = [os.path.join(folder, name) for name in 'ab']
            for file in files:
                done = gate('record', '--program', PROGRAM, '--commit', 'abc', '--out', file, '--only', only)
                self.assertEqual(done.returncode, 0, done.stderr)
            done = gate('compare', *files)
            rows = results.load(files[0])['rows']
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn('| all | 5 | 5 | 0 | 0 | 0 |', done.stdout)
        bad = next(row for row in rows if row['group'] == 'guards')['result']['steps']
        self.assertEqual((bad[1]['loss'], bad[-1]['skipped']), ('not finite 0x7fc00000', 1))
        text = next(row for row in rows if row['group'] == 'data')['result']['steps']
        self.assertEqual(['held-out loss' in step for step in text], [False, True, False, True, True])
        loss = [bits_gate.readable(step['loss']) for step in text]
        self.assertGreater(float(loss[0].split('(')[1][:-1]), float(loss[-1].split('(')[1][:-1]) + 0.5)  # it learns


if __name__ == '__main__':
    unittest.main(verbosity=2)
