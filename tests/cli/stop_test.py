"""Ranks that are killed and runs that are asked to stop: nothing saved is lost, and what follows has the same bits."""
import contextlib
import os
import random
import signal
import time
import unittest

from harness import (BAD_CONFIG, IO_FAILED, OK, PREEMPTED, RANK_LOST, STOPPED, CliTest, holding, millrace, pending, program, rank_pids, start,
                     wait_until)

STEPS = 30


class Stop(CliTest):

    def configs(self, **sections):
        """A run and its uninterrupted twin, trained already."""
        sections.setdefault('train', {}).update(steps=STEPS, micro_batch=8)
        sections.setdefault('model', {}).update(seq_len=64)
        sections.setdefault('checkpoint', {}).setdefault('every', 5)
        sections.setdefault('execution', {}).setdefault('watchdog_s', 300)  # a held run is no hang
        config, run = self.config(**sections)
        return config, run, self.trained(str(sections['model']), **sections)

    def expect_same(self, run, twin):
        self.assertEqual(run.steps(), list(range(1, twin.summary()['last_step'] + 1)))
        self.assertEqual(run.loss_bits(), twin.loss_bits())
        self.assertEqual([m['tokens'] for m in run.metrics()], [m['tokens'] for m in twin.metrics()])
        self.assertEqual(run.hashes(), twin.hashes())
        self.assertEqual(run.summary()['counters'], twin.summary()['counters'])

    def start_until(self, config, run, step, ranks=2):
        """The launcher with an endless run that has done `step` steps."""
        job = start('train', config, ranks=ranks)
        wait_until(lambda: len(run.metrics()) >= step, 'step %d' % step, job=job)
        return job

    def finish(self, config, run, twin):
        """Goes on to the end and compares."""
        outcome = self.expect(millrace('train', config, ranks=2), OK)
        self.expect_same(run, twin)
        return outcome

    def test_a_killed_rank_is_named_and_the_next_start_has_the_same_bits(self):
        config, run, twin = self.configs(checkpoint={'every': 5, 'asynchronous': False})
        for rank, step in ((1, 9), (0, 18)):
            job = start('train', config, ranks=2, env=holding(step))
            saved = step // 5 * 5
            with self.held(job, run, step):
                pid = rank_pids(self.folder)[rank]
                os.kill(pid, signal.SIGKILL)
            outcome = self.expect(job.end(), RANK_LOST)
            self.expect_line(outcome.err, r'^millrace: rank %d \(pid %d\) on \S+ was killed by SIGKILL' % (rank, pid))
            self.assertFalse(os.path.exists(run.file('summary.json')))
            self.assertEqual(run.checkpoints()[-1], 'step_%08d' % saved)
        outcome = self.finish(config, run, twin)
        self.expect_line(outcome.out, '^resuming after step %d from %s$' % (saved, run.checkpoint(saved)))

    def test_kill_minus_nine_during_a_save_leaves_the_previous_checkpoint(self):
        # A save after each step: most of the time is spent in one. The last step is decided on when all kills are over.
        sections = {'train': {'steps': 100000, 'micro_batch': 8}, 'model': {'seq_len': 64, 'd_model': 64, 'ffn': 256},
                    'optimizer': {'schedule': {'kind': 'constant', 'warmup': 2, 'min_lr': 0}}, 'checkpoint': {'every': 1, 'keep': 2}}
        config, run = self.config(**sections)
        rng = random.Random(7)
        caught = 0
        for round in range(6):
            done = len(run.metrics())
            job = start('train', config, ranks=2)
            # Saves go on beside training: the first may be published some steps later.
            wait_until(lambda: len(run.metrics()) > done + 1 and run.checkpoints(), 'two more steps and a checkpoint', job=job)
            pids = rank_pids(self.folder)  # finding them takes longer than a save
            wait_until(lambda: any(n.startswith('tmp.') for n in run.others()), 'a save', job=job)
            time.sleep(rng.uniform(0, 0.01) if round > 1 else 0)
            victims = pids.values() if round % 2 else [pids[round // 2 % 2]]
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.expect(job.end(), RANK_LOST)
            caught += any(n.startswith('tmp.') for n in run.others())
            # What has a checkpoint's name is one, whole, whatever the moment.
            self.assertGreaterEqual(len(run.checkpoints()), 1)
            self.expect(program('inspect', run.path), OK)
        self.assertGreater(caught, 0, 'no kill fell into a save: the test proves nothing')
        last = int(run.checkpoints()[-1][len('step_'):]) + 3
        sets = ('--set', 'train.steps=%d' % last)
        outcome = self.expect(millrace('train', config, *sets, ranks=2), OK)
        self.assertIn('resuming after step', outcome.out)
        self.assertEqual(run.others(), [])  # what killed saves left is gone
        twin_config, twin = self.config('twin.json', run='twin', **sections)
        self.expect(millrace('train', twin_config, *sets, '--set', 'checkpoint.every=0', ranks=2), OK)
        self.expect_same(run, twin)

    def test_a_run_killed_before_its_first_save_begins_again_and_says_so(self):
        config, run, twin = self.configs(checkpoint={'every': 1000})
        job = start('train', config, ranks=2, env=holding(5))
        with self.held(job, run, 5):
            for pid in rank_pids(self.folder).values():
                os.kill(pid, signal.SIGKILL)
        self.expect(job.end(), RANK_LOST)
        self.assertEqual(run.checkpoints(), [])
        outcome = self.finish(config, run, twin)
        self.expect_line(outcome.err, r'warning: \d+ steps after step 0 were not saved: they are trained again')

    def test_a_second_run_in_the_same_folder_is_refused_and_the_first_goes_on(self):
        config, run, twin = self.configs()
        job = start('train', config, ranks=2, env=holding(4))
        with self.held(job, run, 4):
            pids = rank_pids(self.folder)
            with open(run.file('lock')) as f:
                holder = f.read().strip()
            self.assertRegex(holder, r'^pid %d on host \S+ since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$' % pids[0])
            before = run.steps()
            for ranks in (1, 2):
                outcome = self.expect(millrace('train', config, ranks=ranks), BAD_CONFIG)
                self.expect_line(outcome.err, r'^millrace: (rank 0: )?run\.dir %s is in use by %s; ' % (run.path, holder))
                self.assertEqual(self.status_steps(outcome.out), [])
            self.assertEqual(run.steps(), before)
        self.expect(job.end(), OK)
        self.expect_same(run, twin)
        self.assertFalse(os.path.exists(run.file('lock')))
        self.expect(millrace('train', config, ranks=2), OK)  # complete, and nothing is in the way

    def test_a_save_that_fails_is_said_and_training_goes_on(self):
        config, run = self.config(train={'steps': 30}, checkpoint={'every': 20}, execution={'watchdog_s': 300})
        job = start('train', config, ranks=2, env=holding(3))
        with self.held(job, run, 3):
            with open(run.file('checkpoints'), 'w') as f:
                f.write('a file where the folder should be\n')
        outcome = self.expect(job.end(), IO_FAILED)
        self.expect_line(outcome.err, r'warning: step 20: not saved: .*%s.*; training goes on$' % run.file('checkpoints'))
        # The last save is what the run was for.
        self.expect_line(outcome.err, r'^millrace: rank 0: .*%s' % run.file('checkpoints'))
        self.assertEqual(run.steps(), list(range(1, 31)))
        outcome = self.expect(millrace('train', config, ranks=2), IO_FAILED)
        self.expect_line(outcome.err, run.file('checkpoints'))

    def test_signals_to_the_launcher_save_and_the_next_start_has_the_same_bits(self):
        config, run, twin = self.configs(checkpoint={'every': 1000})
        last = 0
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            job = start('train', config, ranks=2, env=holding(last + 5))
            with self.held(job, run, last + 5) as rank:
                job.signal(number)
                wait_until(lambda: pending(rank), 'the request at rank 1', job=job)
            outcome = self.expect(job.end(), PREEMPTED)
            last = run.steps()[-1]
            self.expect_line(outcome.out, r'^stopped on request after step %d; run the same command to go on$' % last)
            self.assertEqual(run.checkpoints()[-1], 'step_%08d' % last)
            self.assertTrue(run.summary()['preempted'])
            self.assertEqual(run.summary()['last_step'], last)
            self.assertEqual(outcome.err, '')
        outcome = self.finish(config, run, twin)
        self.expect_line(outcome.out, '^resuming after step %d from ' % last)
        self.assertFalse(run.summary()['preempted'])

    def test_one_rank_that_is_asked_to_stop_stops_all(self):
        config, run = self.config(train={'steps': 100000}, checkpoint={'every': 100000})
        for rank in (1, 0):
            job = self.start_until(config, run, len(run.metrics()) + 3, ranks=2)
            os.kill(rank_pids(self.folder)[rank], signal.SIGUSR1)
            self.expect(job.end(), PREEMPTED)
            self.assertEqual(run.checkpoints()[-1], 'step_%08d' % run.steps()[-1])

    def test_a_single_process_stops_on_request_too_and_at_once_on_the_second(self):
        config, run = self.config(train={'steps': 100000}, checkpoint={'every': 100000})
        job = self.start_until(config, run, 3, ranks=1)
        job.signal(signal.SIGTERM)
        self.expect(job.end(), PREEMPTED)
        self.assertEqual(run.checkpoints(), ['step_%08d' % run.steps()[-1]])
        # Steps of a minute: the first request is waited for, the second is not.
        slow, slow_run = self.config('slow.json', run='slow', train={'steps': 50, 'micro_batch': 64, 'accumulate': 8000})
        job = start('train', slow)
        wait_until(lambda: os.path.exists(slow_run.file('metrics.jsonl')), 'the first step', job=job)
        job.signal(signal.SIGTERM)
        time.sleep(0.5)  # two at once would be one
        job.signal(signal.SIGTERM)
        self.expect(job.end(), STOPPED)
        self.assertEqual(slow_run.steps(), [])


if __name__ == '__main__':
    unittest.main(verbosity=2)
