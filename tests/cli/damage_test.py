"""Checkpoints that are damaged, of another model, or of another world."""
import ctypes
import os
import shutil
import subprocess
import unittest

from harness import BAD_CHECKPOINT, BAD_CONFIG, IO_FAILED, OK, PROGRAM, CliTest, files_of, flip_bit, millrace, program, raw_mpirun, truncate

CONSTANT = {'schedule': {'kind': 'constant', 'warmup': 0, 'min_lr': 0}}


def cut_shard(run, step):
    path = run.checkpoint(step, 'rank_00001.safetensors')
    truncate(path, os.path.getsize(path) - 5)
    return path


def flip_shard(run, step):
    path = run.checkpoint(step, 'rank_00000.safetensors')
    flip_bit(path, os.path.getsize(path) // 2)
    return path


def cut_manifest(run, step):
    path = run.checkpoint(step, 'manifest.json')
    truncate(path, os.path.getsize(path) // 2)
    return path


def flip_manifest(run, step):
    path = run.checkpoint(step, 'manifest.json')
    flip_bit(path, os.path.getsize(path) * 2 // 3)
    return path


def lose_shard(run, step):
    path = run.checkpoint(step, 'rank_00001.safetensors')
    os.remove(path)
    return path


def flip_other_shard(run, step):
    """Which only rank 1 reads as a whole."""
    path = run.checkpoint(step, 'rank_00001.safetensors')
    flip_bit(path, os.path.getsize(path) // 2)
    return path


DAMAGES = [cut_shard, flip_shard, flip_other_shard, cut_manifest, flip_manifest, lose_shard]


class Damage(CliTest):

    def setUp(self):
        super().setUp()
        # Checkpoints of steps 2 and 4, and what six steps at one go lead to.
        self.long_run = self.trained('long', optimizer=CONSTANT)
        self.short_run = self.trained('short', optimizer=CONSTANT, train={'steps': 4})
        self.assertEqual(self.short_run.checkpoints(), ['step_00000002', 'step_00000004'])

    def copy(self, name):
        """Another folder with the same checkpoints: its configuration of six steps, and itself."""
        config, run = self.config(name + '.json', run=name, optimizer=CONSTANT)
        shutil.copytree(self.short_run.path, run.path)
        return config, run

    def test_auto_takes_the_older_one_and_must_stops(self):
        for damage in DAMAGES:
            with self.subTest(damage.__name__):
                config, run = self.copy(damage.__name__)
                path = damage(run, 4)
                before = files_of(run.path)
                outcome = self.expect(millrace('train', config, '--set', 'checkpoint.resume=must', ranks=2), BAD_CHECKPOINT)
                self.expect_line(outcome.err, 'checkpoint %s is damaged: .*%s' % (run.checkpoint(4), os.path.basename(path)))
                self.assertEqual(files_of(run.path), before)

                outcome = self.expect(millrace('train', config, ranks=2), OK)
                self.expect_line(outcome.err, 'warning: checkpoint %s is damaged and was moved to .*/damaged.step_00000004: .*%s' %
                                 (run.checkpoint(4), os.path.basename(path)))
                self.expect_line(outcome.out, '^resuming after step 2 from %s$' % run.checkpoint(2))
                self.assertEqual(run.others(), ['damaged.step_00000004'])
                self.assertEqual(run.loss_bits(), self.long_run.loss_bits())
                self.assertEqual(run.hashes(), self.long_run.hashes())

    def test_who_uses_an_older_one_says_so(self):
        config, run = self.copy('use')
        cut_manifest(run, 4)
        before = files_of(run.path)
        for command in (('eval', config), ('generate', config, '--prompt', 'a', '--tokens', 1), ('export', config, '--to', self.path('exported'))):
            outcome = self.expect(millrace(*command), OK)
            self.expect_line(outcome.err, r'^millrace: warning: checkpoint %s is damaged, and an older one is used: ' % run.checkpoint(4))
        self.assertEqual(files_of(run.path), before)

    def test_when_all_are_damaged_auto_begins_anew_and_says_so(self):
        config, run = self.copy('all')
        flip_shard(run, 4)
        cut_manifest(run, 2)
        outcome = self.expect(millrace('train', config, ranks=2), OK)
        self.expect_line(outcome.err, 'warning: checkpoint .* is damaged and was moved to', 2)
        self.expect_line(outcome.err, 'warning: %s holds no sound checkpoint any more: training begins anew' % run.file('checkpoints'))
        self.assertEqual(self.status_steps(outcome.out), [1, 2, 3, 4, 5, 6])
        self.assertEqual(run.others(), ['damaged.step_00000002', 'damaged.step_00000004'])
        self.assertEqual(run.hashes(), self.long_run.hashes())
        # The earlier run's lines are kept, and not among the new ones.
        self.assertEqual(run.steps(), [1, 2, 3, 4, 5, 6])
        self.assertTrue(os.path.exists(run.file('metrics.old-1.jsonl')))

    def test_one_that_may_not_be_read_is_not_damaged(self):
        def without_override():  # root reads what it likes
            for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
                ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP

        config, run = self.copy('unreadable')
        before = files_of(run.path)
        for name in ('manifest.json', 'rank_00001.safetensors'):
            path = run.checkpoint(4, name)
            os.chmod(path, 0)
            done = subprocess.run([PROGRAM, 'train', config], preexec_fn=without_override, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, timeout=120)
            os.chmod(path, 0o644)
            self.assertEqual(done.returncode, IO_FAILED, done.stderr)
            self.expect_line(done.stderr.decode(), 'cannot be read .*%s: Permission denied.*; it may be sound, and nothing was moved$' % name)
            self.assertEqual(files_of(run.path), before)

    def test_must_needs_one(self):
        config, run = self.config('none.json', run='none')
        outcome = self.expect(millrace('train', config, '--set', 'checkpoint.resume=must', ranks=2), BAD_CHECKPOINT)
        self.expect_line(outcome.err, 'checkpoint.resume is must, but %s holds no valid checkpoint' % run.file('checkpoints'))
        self.assertEqual(run.metrics(), [])

    def test_another_model_in_the_folder_is_refused_and_nothing_is_moved(self):
        config, run = self.copy('other')
        flip_shard(run, 4)  # even then: it may be the configuration that is wrong
        before = files_of(run.path)
        outcome = self.expect(millrace('train', config, '--set', 'model.layers=3', '--set', 'model.ffn=96', ranks=2), BAD_CONFIG)
        self.expect_line(outcome.err, 'checkpoint %s is of another model: it has layers=2 ffn=64; the configuration has layers=3 ffn=96' %
                         run.checkpoint(4))
        self.assertEqual(len(outcome.err.splitlines()), 1, outcome)
        self.assertEqual(files_of(run.path), before)
        outcome = self.expect(program('train', config, '--set', 'model.mtp.depth=1'), BAD_CONFIG)
        self.expect_line(outcome.err, r'it has no mtp; the configuration has mtp=1x\(')
        outcome = self.expect(raw_mpirun(3, 'train', config, '--set', 'model.layers=3'), BAD_CONFIG)
        self.expect_line(outcome.err, 'is of another model')
        for verb in ('eval', 'generate'):
            outcome = self.expect(program(verb, config, '--set', 'model.layers=3', '--checkpoint', run.checkpoint(2)), BAD_CONFIG)
            self.expect_line(outcome.err, 'it has layers=2; the configuration has layers=3')

    def test_never_sets_the_earlier_run_aside(self):
        config, run = self.copy('never')
        kept = files_of(run.file('checkpoints'))
        with open(run.file('restarts.jsonl'), 'w') as f:
            f.write('{"event": "failed", "reason": "of the earlier run"}\n')
        with open(run.file('timeline.json'), 'w') as f:
            f.write('{}')
        outcome = self.expect(millrace('train', config, '--set', 'checkpoint.resume=never', '--set', 'model.layers=1', ranks=2), OK)
        self.expect_line(outcome.err, 'warning: checkpoint.resume is never: the checkpoints of an earlier run are now in %s' %
                         run.file('checkpoints.old-1'))
        self.assertEqual(files_of(run.file('checkpoints.old-1')), kept)
        self.assertEqual(self.status_steps(outcome.out), [1, 2, 3, 4, 5, 6])
        self.assertTrue(os.path.exists(run.file('metrics.old-1.jsonl')))
        self.assertTrue(os.path.exists(run.file('summary.old-1.json')))
        self.assertTrue(os.path.exists(run.file('restarts.old-1.jsonl')))
        self.assertFalse(os.path.exists(run.file('restarts.jsonl')))
        self.assertTrue(os.path.exists(run.file('timeline.old-1.json')))
        self.assertFalse(os.path.exists(run.file('timeline.json')))
        outcome = self.expect(millrace('train', config, '--set', 'checkpoint.resume=never', '--set', 'model.layers=1', ranks=2), OK)
        self.assertTrue(os.path.isdir(run.file('checkpoints.old-2')))
        self.assertTrue(os.path.exists(run.file('metrics.old-2.jsonl')))

    def test_another_world_goes_on_from_the_same_values(self):
        # The same global batch on each world, so that the data are the same.
        def train(config, run, ranks, steps, micro_batch, *more):
            return self.expect(millrace('train', config, '--set', 'train.steps=%d' % steps, '--set', 'train.micro_batch=%d' % micro_batch,
                                        '--set', 'train.accumulate=1', *more, ranks=ranks), OK)

        one, one_run = self.config('one.json', run='one', optimizer=CONSTANT)
        train(one, one_run, 1, 9, 12)
        config, run = self.config('worlds.json', run='worlds', optimizer=CONSTANT)
        train(config, run, 2, 3, 6)
        for ranks, before, steps, micro_batch in ((3, 2, 6, 4), (1, 3, 9, 12)):
            outcome = train(config, run, ranks, steps, micro_batch)
            warnings = self.expect_line(outcome.err, 'warning')
            self.assertRegex(warnings[0], 'was saved by %d ranks, and now there are %d: the same values are loaded' % (before, ranks))
        # One world, cut in other ways: two replicas, two shards, both blocks in one unit.
        train(one, one_run, 1, 15, 12)
        for steps, options, change in ((11, ['--set', 'parallel.replicate=2'], 'by 1 rank, and now there are 2'),
                                       (13, [], 'with another layout of the same parameters'),
                                       (15, ['--set', 'sharding.blocks_per_unit=2'], 'with another layout of the same parameters')):
            outcome = train(config, run, 2, steps, 6, *options)
            self.assertIn('was saved %s: the same values' % change, self.expect_line(outcome.err, 'warning')[0])
        self.assertEqual(run.steps(), one_run.steps())
        self.assertEqual([m['tokens'] for m in run.metrics()], [m['tokens'] for m in one_run.metrics()])
        for ours, theirs in zip(run.metrics(), one_run.metrics()):
            # Float32 sums in another order: a few units in the last place per step.
            self.assertAlmostEqual(ours['loss'], theirs['loss'], delta=1e-5 * theirs['loss'])

    def test_lines_of_saved_steps_that_are_gone_are_said(self):
        config, run = self.copy('lines')
        with open(run.file('metrics.jsonl')) as f:
            lines = f.readlines()
        with open(run.file('metrics.jsonl'), 'w') as f:
            f.writelines([lines[0], 'garbage\n', lines[2], lines[3][:40]])
        outcome = self.expect(millrace('train', config, ranks=2), OK)
        self.expect_line(outcome.err, r'warning: metrics\.jsonl is damaged: it lacks 2 of the 4 steps that were saved$')
        self.expect_line(outcome.err, 'warning')
        self.assertEqual(run.steps(), [1, 3, 5, 6])

    def test_another_order_of_the_data_is_said(self):
        config, run = self.copy('order')
        outcome = self.expect(millrace('train', config, '--set', 'data.shuffle_seed=5', '--set', 'train.accumulate=1', ranks=2), OK)
        self.expect_line(outcome.err, 'warning: data.shuffle_seed was 0 when .* was saved and is 5 now')
        self.expect_line(outcome.err, 'warning: the global batch was 8 when .* was saved and is 4 now')
        # Tokens seen go on counting from what was seen.
        self.assertEqual([m['tokens'] for m in run.metrics()], [256, 512, 768, 1024, 1152, 1280])


if __name__ == '__main__':
    unittest.main(verbosity=2)
