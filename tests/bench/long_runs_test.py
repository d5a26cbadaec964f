"""tools/bench/long_runs.py: pairs that differ in one thing, rows that are kept, what is summed up."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path('tools/bench').resolve()
sys.path.insert(0, str(BENCH))
import long_runs

PROGRAM = os.path.abspath('tools/cli/millrace_cpu')
TINY = ['model.layers=4', 'model.d_model=64', 'model.heads=4', 'model.ffn=128', 'model.vocab=256', 'model.seq_len=64', 'execution.backend=cpu', 'data.eval_batches=1']
# Clean, so that rows of an earlier call count.
VERSION = 'millrace abc1234 (2026-11-24)\n'


class LongRuns(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)
        (self.at / 'bin').mkdir()
        (self.at / 'VERSION').write_text(VERSION)
        program = self.at / 'bin' / 'millrace'
        program.write_text(f'#!/bin/sh\necho "$@" >>{self.at}/calls\nexec {PROGRAM} "$@"\n')
        program.chmod(0o755)
        (self.at / 'text').write_bytes(bytes((i * i // 7 + i // 64) % 97 + 32 for i in range(20000)))

    def run_it(self, *arguments, text='text'):
        words = [sys.executable, '-B', str(BENCH / 'long_runs.py'), str(self.at / 'out'), '--program', str(self.at / 'bin' / 'millrace'), '--text', str(self.at / text),
                 '--device', 'test', '--steps', '10', *(word for item in TINY for word in ('--set', item)), *arguments]
        return subprocess.run(words, capture_output=True, text=True)

    def rows(self):
        return {row['id']: row for row in json.loads((self.at / 'out' / 'long_runs_test.json').read_text())['rows']}

    def calls(self):
        return (self.at / 'calls').read_text().splitlines()

    def test_rows_are_run_once_and_their_losses_kept(self):
        done = self.run_it('--only', 'gpt2_124m/(compute|fp8_block)/1')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = self.rows()
        self.assertEqual(list(rows), ['gpt2_124m/compute/1', 'gpt2_124m/fp8_block/1'])
        compute, block = (row['result'] for row in rows.values())
        self.assertNotEqual(compute['parameter_hash'], block['parameter_hash'])
        self.assertNotEqual(compute['last_mean'], block['last_mean'])
        self.assertLess(abs(compute['last_mean'] - block['last_mean']), 0.05)
        self.assertLess(compute['held_out'], compute['held_out_before'])
        self.assertEqual((compute['steps'], compute['last'], len(compute['means'])), (10, 2, 1))
        self.assertEqual(self.run_it('--only', 'gpt2_124m/(compute|fp8_block)/1').returncode, 0)
        self.assertEqual(len(self.calls()), 2)
        # Another text is another run, and so is another seed.
        (self.at / 'other').write_bytes((self.at / 'text').read_bytes()[::-1])
        self.assertEqual(self.run_it('--only', 'gpt2_124m/compute/[01]', text='other').returncode, 0)
        self.assertEqual(len(self.calls()), 4)
        self.assertEqual(len({row['result']['parameter_hash'] for row in self.rows().values()}), 3)

    def test_runs_of_a_pair_differ_in_their_linears_alone(self):
        for model in ('gpt2_124m', 'llama_1b'):
            of = {v: long_runs.settings(model, v, 2, 'text', [], 1000) for v in ('compute', 'fp8_tensor', 'fp8_block')}
            for variant, sets in of.items():
                self.assertEqual(set(sets) ^ set(of['compute']), set() if variant == 'compute' else {'precision.linear=compute', f'precision.linear={variant}'})
            other = set(long_runs.settings(model, 'compute', 0, 'text', [], 1000)) ^ set(of['compute'])
            self.assertEqual(other, {'train.seed=0', 'train.seed=2', 'data.shuffle_seed=0', 'data.shuffle_seed=2'})

    def test_what_has_no_time_is_left_and_what_fails_is_a_row(self):
        done = self.run_it('--only', 'gpt2_124m/compute/0', '--budget-s', '0')
        self.assertEqual((done.returncode, (self.at / 'calls').exists()), (3, False), done.stdout)
        self.assertIn('gpt2_124m/compute/0: left out', done.stdout)
        done = self.run_it('--only', 'gpt2_124m/compute/0', '--set', 'model.heads=5')
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn('model.heads', self.rows()['gpt2_124m/compute/0']['error'])

    def test_the_last_fifth_is_what_is_compared(self):
        found = long_runs.summed_up([float(i) for i in range(1000)])
        self.assertEqual((found['last'], found['last_mean'], found['first']), (200, 899.5, 0.0))
        self.assertEqual(found['means'][:2], [24.5, 74.5])
        self.assertEqual(long_runs.summed_up([float(i) for i in range(3500)])['last_mean'], 3399.5)


if __name__ == '__main__':
    unittest.main()
