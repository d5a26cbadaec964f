"""Disks that fail, fill up or are slow while checkpoints are written: the run goes on or stops as its configuration says, earlier
checkpoints stay sound, and what could not be written leaves nothing behind."""
import json
import os
import unittest

from harness import BAD_CHECKPOINT, BAD_CONFIG, HUNG, IO_FAILED, OK, CliTest, flip_bit, millrace, program

STEPS = 8
# Of each rank's calls: a checkpoint of these models is some 15 writes, two syncs (shards and record), one rename; on rank 0 one sync and
# two renames more: of the manifest, and last the one that publishes the folder.
SECOND_SAVE = {'write=20': 'write to', 'sync=4': 'sync', 'rename=6': 'rename', 'full=450000': 'reserve space for'}


class Disk(CliTest):

    def train(self, name, disk, code, inject=None, **sections):
        sections.setdefault('train', {}).update(steps=STEPS)
        config, run = self.config(name + '.json', run=name, **sections)
        env = {'MILLRACE_INJECT_DISK': disk}
        if inject:
            env['MILLRACE_INJECT'] = inject
        outcome = millrace('train', config, ranks=2, env=env)
        return outcome if code is None else self.expect(outcome, code), run

    def expect_sound(self, run):
        outcome = self.expect(program('inspect', '--verify', run.path), OK)
        self.assertEqual(outcome.out.splitlines(), ['%s: sound' % run.checkpoint(int(n[len('step_'):])) for n in reversed(run.checkpoints())])
        self.assertEqual(run.others(), [])

    def failed_saves(self, run):
        return [line['save_error'] for line in run.metrics() if 'save_error' in line]

    def test_training_goes_on_after_a_save_that_failed(self):
        sound = self.trained('sound', train={'steps': STEPS})
        for rank, asynchronous, fault in ((0, True, 'write=20'), (1, False, 'write=20'), (1, True, 'sync=4'), (0, True, 'rename=6')):
            with self.subTest(rank=rank, asynchronous=asynchronous, fault=fault):
                outcome, run = self.train('%s%d' % (fault[:4], rank), '%d:%s' % (rank, fault), OK,
                                          checkpoint={'keep': 9, 'asynchronous': asynchronous})
                cause = r'cannot %s %s/tmp\.\d+\.\S+: Input/output error' % (SECOND_SAVE[fault], run.file('checkpoints'))
                if fault.startswith('rename'):
                    cause = cause.replace(': Input', r' to %s/\S+: Input' % run.file('checkpoints'))
                by_rank = '' if fault == 'rename=6' else 'rank %d: ' % rank
                self.expect_line(outcome.err, r'^millrace: warning: step 4: not saved: %s%s; training goes on$' % (by_rank, cause))
                self.assertEqual(len(self.failed_saves(run)), 1)
                self.assertRegex(self.failed_saves(run)[0], cause)
                self.assertEqual(run.checkpoints(), ['step_%08d' % s for s in (2, 6, 8)])
                self.assertEqual(run.summary()['saves']['published'], 3)
                self.assertEqual(run.summary()['saves']['failed'], 1)
                self.expect_sound(run)
                self.assertEqual(run.loss_bits(), sound.loss_bits())
                self.assertEqual(run.hashes(), sound.hashes())

    def test_it_stops_where_that_is_asked_for(self):
        for rank, asynchronous, fault in ((1, True, 'write=20'), (0, False, 'sync=4'), (0, True, 'full=450000')):
            with self.subTest(rank=rank, asynchronous=asynchronous, fault=fault):
                outcome, run = self.train('%s%d' % (fault[:4], rank), '%d:%s' % (rank, fault), IO_FAILED,
                                          checkpoint={'on_error': 'stop', 'asynchronous': asynchronous})
                self.expect_line(outcome.err, r'^millrace: rank 0: step 4: not saved: rank %d: cannot %s %s/tmp\.\S+: (Input/output error|No space left on device)$'
                                 % (rank, SECOND_SAVE[fault], run.file('checkpoints')))
                self.assertLess(len(run.steps()), STEPS)
                self.assertEqual(run.checkpoints(), ['step_00000002'])
                self.expect_sound(run)

    def test_a_disk_that_stays_full_is_said_each_time_and_fails_the_last_save(self):
        outcome, run = self.train('full', '1:full=450000', IO_FAILED)
        full = r'not saved: rank 1: cannot reserve space for %s/tmp\.\S+: No space left on device' % run.file('checkpoints')
        self.expect_line(outcome.err, r'^millrace: warning: step [46]: %s; training goes on$' % full, count=2)
        self.expect_line(outcome.err, r'^millrace: rank 0: step 8: %s$' % full)
        self.assertEqual(run.steps(), list(range(1, STEPS + 1)))
        self.assertEqual(run.checkpoints(), ['step_00000002'])
        self.expect_sound(run)

    def test_a_slow_disk_is_waited_for_only_where_it_must_be_and_is_no_hang(self):
        # Some ten writes and two syncs of 120 ms each: longer than the limit, while the steps take milliseconds.
        stalls = {}
        for asynchronous in (True, False):
            def attempt(number):
                outcome, run = self.train('slow%d_%d' % (asynchronous, number), '0:slow=120,1:slow=120', None, execution={'watchdog_s': 1},
                                          checkpoint={'every': 4, 'asynchronous': asynchronous})
                return (outcome, run), outcome.code == HUNG  # a rank that had no core for a second

            outcome, run = self.unless_late(attempt, tries=3)
            self.expect(outcome, OK)
            self.assertEqual(outcome.err, '')
            self.assertEqual(run.checkpoints(), ['step_00000004', 'step_00000008'])
            self.expect_sound(run)
            stalls[asynchronous] = [line['save_stall_ms'] for line in run.metrics() if 'save_stall_ms' in line]
            self.assertEqual(len(stalls[asynchronous]), 1)
            self.assertGreater(run.summary()['saves']['save_ms']['median'], 1000)
            # The line of a step after it tells what it took from beginning to end.
            saved = [(line['saved_step'], line['save_ms']) for line in run.metrics() if 'save_ms' in line]
            self.assertEqual([step for step, _ in saved], [] if asynchronous else [4])  # with it the last save finds it in flight
            self.assertTrue(all(ms > 1000 for _, ms in saved), saved)
        self.assertGreater(stalls[False][0], 1000)
        self.assertLess(stalls[True][0], 1000)  # the machine may be busy

    def test_a_save_that_waits_for_the_one_before_tells_how_long(self):
        def attempt(number):
            _, run = self.train('queue%d' % number, '0:slow=120,1:slow=120', OK, checkpoint={'every': 2, 'keep': 9})
            stalls = {line['step']: line['save_stall_ms'] for line in run.metrics() if 'save_stall_ms' in line}
            self.assertEqual(sorted(stalls), [3, 5, 7])  # of the saves after steps 2, 4 and 6
            # Steps of milliseconds between saves of more than a second.
            return run, not (stalls[3] < 500 and min(stalls[5], stalls[7]) > 700)

        run = self.unless_late(attempt, tries=3)
        self.assertEqual([line['saved_step'] for line in run.metrics() if 'saved_step' in line], [2, 4])
        self.assertTrue(all(line['save_ms'] > 1000 for line in run.metrics() if 'saved_step' in line))

    def test_a_slow_disk_hides_no_hang(self):
        # The save begun after step 2 takes more than a minute.
        outcome, run = self.train('hang', '0:slow=4000,1:slow=4000', HUNG, inject='4:1:skip=h.1', execution={'watchdog_s': 1})
        self.assertLess(outcome.seconds, 60)
        self.expect_line(outcome.err, r'^millrace: rank \d: no progress for \d+ s .* unit h\.1 ')
        self.assertEqual(run.checkpoints(), [])

    def test_verify_names_what_is_damaged_and_refuses_what_has_no_checksums(self):
        config, run = self.config()
        self.expect(millrace('train', config, ranks=2), OK)
        path = run.checkpoint(6, 'rank_00001.safetensors')
        flip_bit(path, os.path.getsize(path) - 1)
        outcome = self.expect(program('inspect', '--verify', run.path), BAD_CHECKPOINT)
        self.expect_line(outcome.out, r'^%s: damaged: %s: blob "adam_v/' % (run.checkpoint(6), path))
        self.expect_line(outcome.out, r'^%s: sound$' % run.checkpoint(4))
        self.expect(program('inspect', '--verify', run.checkpoint(4)), OK)
        self.assertFalse(json.loads(self.expect(program('inspect', '--verify', '--json', run.checkpoint(6)), BAD_CHECKPOINT).out)['sound'])
        self.expect(program('inspect', '--verify', path), BAD_CONFIG)
        self.expect(program('inspect', '--verify', run.file('lock.d')), 3)
        os.mkdir(self.path('empty'))
        self.expect(program('inspect', '--verify', self.path('empty')), BAD_CHECKPOINT)

    def test_the_best_checkpoints_and_multiples_stay(self):
        # The held-out loss falls from step to step, and a huge learning rate spoils it after a resume.
        keep = {'every': 2, 'keep': 1, 'keep_best': 1, 'keep_every': 6}
        config, run = self.config(train={'steps': 4, 'eval_every': 2}, checkpoint=keep)
        self.expect(millrace('train', config, ranks=2), OK)
        self.assertEqual(run.checkpoints(), ['step_00000004'])
        more = ('--set', 'train.steps=10', '--set', 'optimizer.lr=30', '--set', 'optimizer.schedule.kind=constant',
                '--set', 'optimizer.schedule.min_lr=0')
        self.expect(millrace('train', config, *more, ranks=2), OK)
        self.assertEqual(run.checkpoints(), ['step_%08d' % s for s in (4, 6, 10)])
        best = json.loads(program('inspect', '--json', run.checkpoint(4)).out)['eval_loss']
        self.assertEqual(best, [line['eval_loss'] for line in run.metrics() if line['step'] == 4][0])

    def test_a_checkpoint_has_the_held_out_loss_of_its_own_step_or_none(self):
        config, run = self.config(train={'steps': 6, 'eval_every': 4}, checkpoint={'every': 2, 'keep': 9})
        self.expect(millrace('train', config, ranks=2), OK)
        losses = {step: json.loads(self.expect(program('inspect', '--json', run.checkpoint(step)), OK).out)['eval_loss'] for step in (2, 4, 6)}
        evaluated = {line['step']: line['eval_loss'] for line in run.metrics() if 'eval_loss' in line}
        self.assertEqual(sorted(evaluated), [4, 6])
        self.assertEqual(losses, {2: None, 4: evaluated[4], 6: evaluated[6]})
        # Not what an earlier step had.
        self.expect(millrace('train', config, '--set', 'train.steps=12', '--set', 'train.eval_every=7', ranks=2), OK)
        self.assertIsNone(json.loads(self.expect(program('inspect', '--json', run.checkpoint(8)), OK).out)['eval_loss'])

    def test_a_disk_fault_that_cannot_be_is_refused(self):
        config, run = self.config()
        for fault, sentence in (('', 'is set and empty'), ('0:full', 'none of'), ('0:sync=0', 'N and MS from 1'), ('x:sync=1', 'none of'),
                                ('0:sync=1,,', 'none of'), ('0:sync=1,0:write=2', 'more than one call fails on rank 0'), ('1:slow=1', 'a fault on rank 1: there are 1 ranks')):
            outcome = self.expect(millrace('train', config, env={'MILLRACE_INJECT_DISK': fault}), BAD_CONFIG)
            self.assertIn(sentence, outcome.err)
        self.assertFalse(os.path.exists(run.path))


if __name__ == '__main__':
    unittest.main(verbosity=2)
