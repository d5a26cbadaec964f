"""A job that stands still ends with exit code 71 and says who holds it up; one that is only slow goes on."""
import contextlib
import os
import re
import signal
import time
import unittest

from harness import HUNG, OK, PREEMPTED, RANK_LOST, CliTest, millrace, rank_pids, start, wait_until

LIMIT_S = 2
# Until the verdict and the end: generous, the machine may be busy. Without a watchdog nothing ends for ten minutes.
END_S = 60
SPEAKER_ENDS_S = 5  # kSpeakerEnds of watchdog.cc


def parent(pid):
    with open('/proc/%d/stat' % pid) as f:
        return int(f.read().rpartition(')')[2].split()[1])


class Watchdog(CliTest):

    def watched(self, limit=LIMIT_S, **sections):
        """A run that does not end by itself while a test looks at it, however slow the test is."""
        sections.setdefault('train', {}).setdefault('steps', 100000)
        sections.setdefault('checkpoint', {}).setdefault('every', 0)
        sections.setdefault('execution', {})['watchdog_s'] = limit
        return self.config(**sections)

    def start_until(self, config, run, step, ranks=2, env=None):
        job = start('train', config, ranks=ranks, env=env)
        wait_until(lambda: len(run.metrics()) >= step, 'step %d' % step, job=job)
        return job

    def expect_hang(self, job):
        outcome = self.expect(job.end(END_S), HUNG)
        self.assertEqual(wait_until(lambda: not rank_pids(self.folder), 'the last rank to end', END_S), True)
        verdicts = re.findall(r'^(millrace: rank \d+: no progress for (\d+) s .*)$', outcome.err, re.M)
        self.assertGreater(len(verdicts), 0, outcome)
        # Another one speaks only where the first has not ended the job in time.
        for _, seconds in verdicts[1:]:
            self.assertGreaterEqual(int(seconds), LIMIT_S + SPEAKER_ENDS_S, outcome)
        return outcome, verdicts[0][0]

    def test_a_stopped_rank_is_named_and_the_job_ends(self):
        for rank, ranks in ((1, 2), (0, 3)):
            with self.subTest(rank=rank):
                config, run = self.watched(run='run%d' % rank, execution={'graph': ('step', 'off')[rank]})
                job = self.start_until(config, run, 100, ranks)
                pid = rank_pids(self.folder)[rank]
                stopped = time.monotonic()
                os.kill(pid, signal.SIGSTOP)
                outcome, line = self.expect_hang(job)
                self.assertGreater(time.monotonic() - stopped, LIMIT_S * 0.9, outcome)
                self.assertRegex(line, r'rank %d \(pid %d on \S+\) does not run: its process is stopped by a signal' % (rank, pid))
                # Where it was, and where another one waits for it.
                self.assertRegex(line, r'last seen in .*\(op \S+, stream \w+( over \w+)?, step \d+, microbatch \d')
                speaker = 1 - rank if ranks == 2 else 1
                self.assertRegex(line, r'^millrace: rank %d: ' % speaker)
                self.assertRegex(line, r'ranks? \S+( \S+)? (waits?|are|is) in \S+ of (no unit|unit \S+) \(op \S+|the phase')

    def test_a_rank_that_leaves_out_a_collective_is_seen_and_the_collective_named(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                config, run = self.watched(run='run%d' % rank)
                job = start('train', config, ranks=2, env={'MILLRACE_INJECT': '20:%d:skip=h.1' % rank})
                outcome, line = self.expect_hang(job)
                self.assertRegex(
                    line, r'rank %d \(pid \d+ on \S+\) waits in all_gather of unit h\.1 \(op gather/h\.1, stream gather over shard, step 20, '
                    r'microbatch 0, forward\.\w+\), which others have passed, or left out; rank %d ' % (1 - rank, rank))
                self.assertEqual(run.steps()[-1:], [19] if rank == 1 else run.steps()[-1:])

    def test_a_data_loader_that_blocks_is_named(self):
        config, run = self.watched()
        outcome, line = self.expect_hang(start('train', config, ranks=2, env={'MILLRACE_INJECT': '20:1:loader'}))
        self.assertRegex(line, r'rank 1 \(pid \d+ on \S+\) is in the phase "reading tokens" of step 20.* and holds the others up; rank 0 waits in ')
        self.assertEqual(run.steps()[-1:], [19])

    def test_the_others_of_a_first_replay_are_watched_too(self):
        """Ahead of it ranks tell each other that they are ready, which takes CPU time while one of them does not come."""
        config, run = self.watched()
        outcome, line = self.expect_hang(start('train', config, ranks=2, env={'MILLRACE_INJECT': '2:1:loader'}))
        self.assertRegex(line, r'rank 1 \(pid \d+ on \S+\) is in the phase "reading tokens" of step 2.* and holds the others up; rank 0 ')
        self.assertEqual(run.steps()[-1:], [1])

    def stopped_meanwhile(self, number, seconds, ranks, **sections):
        """Stops `ranks` of two for some seconds, lets the run go on, ends it. Also gives when it was about to stop, had stopped, was about to
        let go on, and had let go on."""
        config, run = self.watched(run='run%d' % number, **sections)
        job = self.start_until(config, run, 5)
        pids = [pid for rank, pid in rank_pids(self.folder).items() if rank in ranks]
        self.assertEqual(len(pids), len(ranks))
        times = [time.monotonic()]
        for signal_number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # the outcome tells
                    os.kill(pid, signal_number)
            times.append(time.monotonic())
            if signal_number == signal.SIGSTOP:
                time.sleep(seconds)
                before = run.steps()[-1]
                times.append(time.monotonic())
        wait_until(lambda: not job.running() or run.steps()[-1] >= before + 5, 'five more steps')
        job.signal(signal.SIGTERM)
        return run, job.end(), times

    def test_a_stop_of_all_ranks_is_no_hang(self):
        def attempt(number):
            run, outcome, (began, stopped, go_on, gone_on) = self.stopped_meanwhile(number, 3 * LIMIT_S, (0, 1))
            one_without_the_other = max(stopped - began, gone_on - go_on)
            return (run, outcome), outcome.code == HUNG and one_without_the_other > LIMIT_S / 2

        run, outcome = self.unless_late(attempt)
        self.expect(outcome, PREEMPTED)
        self.assertEqual(outcome.err, '')
        self.assertFalse(os.path.exists(run.file('.progress')))  # removed at a clean end

    def test_a_short_stop_of_one_rank_is_no_hang(self):
        limit = 6

        def attempt(number):
            run, outcome, times = self.stopped_meanwhile(number, 2, (1,), limit=limit)
            return outcome, outcome.code == HUNG and times[-1] - times[0] > 0.9 * limit

        self.expect(self.unless_late(attempt), PREEMPTED)

    def test_without_a_watchdog_nothing_is_said(self):
        _, outcome, _ = self.stopped_meanwhile(0, 3 * LIMIT_S, (1,), limit=0)
        self.expect(outcome, PREEMPTED)
        self.assertEqual(outcome.err, '')

    def test_a_killed_rank_keeps_its_exit_code_and_what_it_left_goes_at_the_next_start(self):
        config, run = self.watched(limit=20)
        job = self.start_until(config, run, 5)
        os.kill(rank_pids(self.folder)[1], signal.SIGKILL)
        outcome = self.expect(job.end(END_S), RANK_LOST)
        self.assertNotIn('no progress', outcome.err)
        left = os.listdir(run.file('.progress'))
        self.assertEqual(len(left), 1)
        job = start('train', config, ranks=2)
        wait_until(lambda: os.listdir(run.file('.progress')) not in (left, []), 'a folder of its own', job=job)
        wait_until(lambda: len(os.listdir(run.file('.progress'))) == 1, 'the old one to go', job=job)
        self.assertNotEqual(os.listdir(run.file('.progress')), left)
        wait_until(lambda: self.status_steps(job.out_so_far()), 'a step', job=job)
        job.signal(signal.SIGTERM)
        self.expect(job.end(), PREEMPTED)
        self.assertFalse(os.path.exists(run.file('.progress')))
        # Nor does a run leave one that ends by itself.
        self.expect(millrace('train', config, '--set', 'train.steps=%d' % (run.steps()[-1] + 5), ranks=2), OK)
        self.assertFalse(os.path.exists(run.file('.progress')))

    def test_whoever_ended_a_rank_has_time_to_end_the_others(self):
        def attempt(number):
            config, run = self.watched(run='run%d' % number)
            job = self.start_until(config, run, 5)
            pids = rank_pids(self.folder)
            mpirun = parent(pids[0])
            began = time.monotonic()
            os.kill(mpirun, signal.SIGSTOP)
            try:
                os.kill(pids[1], signal.SIGKILL)
                time.sleep(1.75 * LIMIT_S)  # without that, rank 0 would have spoken
            finally:
                os.kill(mpirun, signal.SIGCONT)
            outcome = job.end(END_S)
            return outcome, 'no progress' in outcome.err and time.monotonic() - began > 0.9 * (LIMIT_S + SPEAKER_ENDS_S)

        outcome = self.expect(self.unless_late(attempt), RANK_LOST)
        self.assertNotIn('no progress', outcome.err)

    def test_a_rank_ends_by_itself_where_mpirun_does_not_end_it(self):
        config, run = self.watched()
        job = self.start_until(config, run, 5)
        pids = rank_pids(self.folder)
        mpirun = parent(pids[0])
        for pid in (mpirun, pids[1]):
            os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: 0 not in rank_pids(self.folder), 'the end of rank 0', END_S)
        finally:
            os.kill(mpirun, signal.SIGCONT)
        self.expect_hang(job)

    def test_an_op_of_the_cpu_that_takes_longer_than_the_limit_is_no_hang(self):
        def attempt(number):
            # Attention over a long sequence, of seconds; of more where the machine is quick.
            config, run = self.watched(run='run%d' % number, limit=1, train={'steps': 1, 'micro_batch': 3 << number, 'accumulate': 1},
                                       model={'family': 'gpt2', 'layers': 1, 'd_model': 128, 'heads': 1, 'ffn': 128, 'seq_len': 8192},
                                       data={'kind': 'synthetic', 'path': None}, optimizer={'schedule': {'kind': 'constant', 'warmup': 0, 'min_lr': 0}})
            outcome = self.expect(millrace('train', config), OK)
            return outcome, run.metrics()[0]['step_ms'] < 4000  # nearly all of it in two ops

        self.unless_late(attempt)


if __name__ == '__main__':
    unittest.main(verbosity=2)
