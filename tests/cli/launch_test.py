"""`millrace launch`: what it starts again and what not, how it is stopped, and that nothing of a run outlives it."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

from harness import (BAD_CONFIG, BAD_DATA, HUNG, OK, PREEMPTED, PROGRAM, RANK_LOST, SLOWER, STOPPED, TIMEOUT_S, CliTest, Job, environment,
                     flip_bit, holding, millrace, pending, rank_pids, read, start, truncate, wait_until)
from kill_matrix import carriers, children, is_over, scratch_of

STEPS = 30
CODE_UNKNOWN = 76  # of tools/README.md


def launch(*args, ranks=2, options=(), env=None):
    return start('launch', '--ranks', ranks, *options, '--', 'train', *args, env=env)


def mpirun_of(job):
    found = [c for c in children(job.process.pid) if not is_over(c)]
    return found[0] if found else None


class Launch(CliTest):

    def configs(self, **sections):
        """A run and its uninterrupted twin, trained already."""
        sections.setdefault('train', {}).update(steps=STEPS, micro_batch=8)
        sections.setdefault('model', {}).update(seq_len=64)
        sections.setdefault('checkpoint', {}).setdefault('every', 5)
        sections.setdefault('execution', {}).setdefault('watchdog_s', 300)  # a held run is no hang
        config, run = self.config(**sections)
        return config, run, self.trained('twin', **sections)

    def expect_same(self, run, twin):
        self.assertEqual(run.steps(), list(range(1, STEPS + 1)))
        self.assertEqual(run.loss_bits(), twin.loss_bits())
        self.assertEqual(run.hashes(), twin.hashes())

    def started(self, job, run, step):
        wait_until(lambda: len(run.metrics()) >= step, 'step %d' % step, job=job)
        return job

    @contextlib.contextmanager
    def stopped(self, job, run, step):
        """At `step` of an endless run, or later, where the job stays meanwhile: rank 1 is stopped. Gives its pid."""
        rank = wait_until(lambda: rank_pids(self.folder).get(1), 'rank 1', job=job)
        self.started(job, run, step)
        os.kill(rank, signal.SIGSTOP)
        try:
            yield rank
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGCONT)

    def ended_unseen(self, job, run, stands):
        """Where the run `stands`, ranks end by SIGKILL of rank 1 while the supervisor, which is stopped, does nothing. Gives the newest
        checkpoint's step."""
        with stands:
            job.signal(signal.SIGSTOP)
            ranks = rank_pids(self.folder)
            os.kill(ranks[1], signal.SIGKILL)
        wait_until(lambda: all(is_over(pid) for pid in ranks.values()), 'the end of the ranks')
        return int(run.checkpoints()[-1][len('step_'):])

    def stopped_after_its_restart(self, job, run):
        """How an endless run ends that is asked to once it goes on."""
        wait_until(lambda: b'"resumed"' in read(run.file('restarts.jsonl')), 'the next step', job=job)
        job.signal(signal.SIGTERM)
        return self.expect(job.end(), PREEMPTED)

    def lines(self, run):
        with open(run.file('restarts.jsonl')) as f:
            return [json.loads(line) for line in f]

    def left(self, run):
        """What the supervisor is there to clear away."""
        return [n for n in ('lock', 'launch.lock', '.launch', '.progress') if os.path.exists(run.file(n))]

    def test_a_killed_rank_and_a_killed_mpirun_are_started_again_with_the_same_bits(self):
        config, run, twin = self.configs(checkpoint={'every': 5, 'asynchronous': False})
        job = launch(config, env=holding(9, 18))
        for victim, step in (('rank', 9), ('mpirun', 18)):
            with self.held(job, run, step) as rank:
                scratch = scratch_of(run)
                # By this the next supervisor would find it, if this one could not end it.
                self.assertLessEqual(set(rank_pids(self.folder).values()), set(carriers('MILLRACE_LAUNCH=' + scratch)))
                left_by = {n for n in os.listdir(scratch) if n.startswith('vader_segment.')}
                self.assertNotEqual(left_by, set(), os.listdir(scratch))
                os.kill(rank if victim == 'rank' else mpirun_of(job), signal.SIGKILL)
            wait_until(lambda: read(run.file('restarts.jsonl')).count(b'"resumed"') == (1 if victim == 'rank' else 2), 'the next step', job=job)
            self.assertEqual(left_by & set(os.listdir(scratch)), set())  # what an attempt leaves in shared memory goes with it
            with self.held(job, run, step):  # again, in the next attempt
                pass
        outcome = self.expect(self.ended(job), OK)
        self.expect_same(run, twin)
        first, second = self.expect_line(outcome.err, '^millrace launch: .*; restart [12] of at most 100, from the checkpoint of step ', 2)
        self.assertIn('a rank was killed by SIGKILL after step', first)
        self.assertIn('mpirun was killed by SIGKILL after step', second)
        lines = self.lines(run)
        self.assertEqual([line['event'] for line in lines], ['failed', 'resumed'] * 2)
        for failed, resumed, reason in zip(lines[::2], lines[1::2], ('a rank was killed by SIGKILL', 'mpirun was killed by SIGKILL')):
            self.assertEqual((failed['reason'], failed['exit_code'], failed['restarts']), (reason, 137, True))
            self.assertEqual(failed['checkpoint'], failed['step'] // 5 * 5)
            self.assertEqual(resumed['step'], failed['checkpoint'] + 1)
            self.assertGreater(resumed['seconds'], 0.1)
            self.assertLess(resumed['seconds'], outcome.seconds)
        self.assertEqual(self.left(run), [])
        self.assertFalse(os.path.exists(scratch))

    def test_a_restart_from_an_older_checkpoint_is_told_as_it_was(self):
        config, run = self.config(train={'steps': 100000, 'micro_batch': 8}, checkpoint={'every': 100})
        job = launch(config)
        # A checkpoint is written beside the steps, which may be hundreds further by then.
        wait_until(lambda: len(run.checkpoints()) > 1, 'the second checkpoint', job=job)
        newest = self.ended_unseen(job, run, self.stopped(job, run, 210))
        path = run.checkpoint(newest, 'rank_00000.safetensors')
        flip_bit(path, -1000 + os.path.getsize(path))
        job.signal(signal.SIGCONT)
        self.stopped_after_its_restart(job, run)
        failed, resumed = self.lines(run)
        self.assertEqual((failed['event'], failed['checkpoint'], resumed['event']), ('failed', newest, 'resumed'))
        self.assertGreater(resumed['step'], newest - 100)  # the undamaged one
        self.assertLess(resumed['step'], newest)  # steps are faster than they are looked at

    def test_a_checkpoint_that_is_cut_off_is_not_the_newest(self):
        config, run = self.config(train={'steps': 30, 'micro_batch': 8}, model={'seq_len': 64}, checkpoint={'every': 5, 'keep': 9, 'asynchronous': False})
        job = launch(config, env=holding(13))
        newest = self.ended_unseen(job, run, self.held(job, run, 13))
        self.assertEqual(newest, 10)
        path = run.checkpoint(newest, 'rank_00000.safetensors')
        truncate(path, os.path.getsize(path) - 1)
        job.signal(signal.SIGCONT)
        outcome = self.expect(self.ended(job), OK)
        self.expect_line(outcome.err, 'restart 1 of at most 100, from the checkpoint of step %d$' % (newest - 5))
        self.assertEqual(self.lines(run)[0]['checkpoint'], newest - 5)

    def test_one_process_without_mpirun_is_started_again_too(self):
        config, run = self.config(train={'steps': 100000, 'micro_batch': 8}, checkpoint={'every': 5})
        job = self.started(launch(config, ranks=1), run, 8)
        os.kill(mpirun_of(job), signal.SIGKILL)
        outcome = self.stopped_after_its_restart(job, run)
        self.expect_line(outcome.err, r'^millrace launch: the run was killed by SIGKILL after step \d+; restart 1 of at most 100')
        self.assertEqual(run.steps(), list(range(1, run.steps()[-1] + 1)))

    def test_a_killed_supervisor_leaves_nothing_that_runs_and_the_next_one_goes_on(self):
        mark = 'MILLRACE_LAUNCH_TEST=' + self.folder

        def attempt(number):
            config, run, twin = self.configs(run='run%d' % number)
            job = launch(config, env=dict([mark.split('=', 1)], **holding(9)))
            with self.held(job, run, 9):
                pids = [mpirun_of(job), *rank_pids(self.folder).values()]
                self.assertEqual(len(pids), 3)
                scratch = scratch_of(run)
                killed = time.monotonic()
                os.kill(job.process.pid, signal.SIGKILL)
            wait_until(lambda: all(is_over(pid) for pid in pids), 'the end of mpirun and ranks')
            seconds = time.monotonic() - killed
            job.end()
            return (config, run, twin, scratch), seconds > 0.9 * SLOWER  # Open MPI itself needs a second

        config, run, twin, scratch = self.unless_late(attempt)
        self.assertEqual(carriers(mark), [])
        outcome = self.expect(launch(config).end(), OK)
        self.expect_line(outcome.err, '^millrace launch: an earlier supervisor of this run was killed')
        self.expect_same(run, twin)
        failed, resumed = self.lines(run)
        self.assertEqual((failed['reason'], failed['exit_code']), ('the supervisor was killed', None))
        self.assertEqual(resumed['step'], failed['checkpoint'] + 1)
        self.assertEqual(self.left(run), [])
        self.assertFalse(os.path.exists(scratch))

    def test_what_a_killed_supervisor_could_not_end_the_next_one_kills(self):
        config, run, twin = self.configs()
        job = launch(config, env=holding(5))
        with self.held(job, run, 5):
            with open(run.file('.launch')) as f:
                marked = dict(os.environ, MILLRACE_LAUNCH=f.read())
            stray = subprocess.Popen(['sleep', '1000'], env=marked, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(stray.kill)
            os.kill(job.process.pid, signal.SIGKILL)
        job.end()
        self.assertIsNone(stray.poll())
        self.expect(launch(config).end(), OK)
        self.assertEqual(stray.wait(60), -signal.SIGKILL)
        self.expect_same(run, twin)

    def test_a_note_that_names_a_folder_of_somebody_else_removes_nothing(self):
        config, run = self.config(train={'steps': 1}, optimizer={'schedule': {'kind': 'constant', 'warmup': 0, 'min_lr': 0}})
        os.makedirs(run.path)
        os.makedirs(self.path('precious', 'sub'))
        with open(run.file('.launch'), 'w') as f:
            f.write(self.path('precious'))
        self.expect(launch(config, ranks=1).end(), OK)
        self.assertTrue(os.path.isdir(self.path('precious', 'sub')))

    def test_what_an_attempt_leaves_is_killed_before_the_next(self):
        config, run = self.config()
        script = self.path('mpirun.sh')
        with open(script, 'w') as f:  # ends when it is told to
            f.write('#!/bin/sh\nsetsid sh -c "trap : HUP TERM; sleep 1000; sleep 1000" >/dev/null 2>&1 &\n'
                    'while ! rmdir "%s" 2>/dev/null; do sleep 0.02; done\nexit 72\n' % self.path('go'))
        os.chmod(script, 0o755)
        mark = 'MILLRACE_LAUNCH_TEST=' + self.folder
        job = start('launch', '--mpirun', script, '--', 'train', config, env=dict([mark.split('=', 1)]))
        strays = lambda: {pid for pid in carriers(mark) if read('/proc/%d/cmdline' % pid).startswith(b'sleep\x001000')}
        try:
            seen = set()
            for attempt in ('first', 'second', 'third'):
                now = wait_until(lambda: strays() - seen and strays(), 'what the %s attempt leaves' % attempt, job=job)
                self.assertEqual(len(now), 1)
                self.assertEqual(now & seen, set())
                seen |= now
                os.mkdir(self.path('go'))
                wait_until(lambda: not os.path.exists(self.path('go')), 'the end of the %s attempt' % attempt)
            self.expect(job.end(), RANK_LOST)
            self.assertEqual(strays(), set())
        finally:
            for pid in carriers(mark):
                os.kill(pid, signal.SIGKILL)

    def test_a_stopped_rank_does_not_outlive_mpirun(self):
        config, run, twin = self.configs()
        job = launch(config, env=holding(5))
        with self.held(job, run, 5) as rank:
            os.kill(mpirun_of(job), signal.SIGKILL)
            wait_until(lambda: is_over(rank), 'the end of the stopped rank')
        self.expect(self.ended(job), OK)
        self.expect_same(run, twin)

    def test_the_same_step_failing_twice_is_the_end(self):
        # Published before the next step: one that is written beside it may be lost with it.
        # Each attempt records its second step, and ranks vote on that: the fault is in the third of the second attempt.
        config, run = self.config(train={'steps': 12}, checkpoint={'every': 3, 'asynchronous': False}, execution={'watchdog_s': 2})
        outcome = self.expect(launch(config, env={'MILLRACE_INJECT': '9:1:skip=h.0'}).end(), HUNG)
        self.expect_line(outcome.err, '^millrace launch: mpirun ended with exit code 71 .timeout. after step 8; restart 1 of at most 100, '
                         'from the checkpoint of step 6$')
        self.expect_line(outcome.err, '^millrace launch: .* after step 8: not started again: it ended twice after step 8 without progress in '
                         'between; its exit code is 71$')
        self.assertEqual([(line['event'], line.get('restarts')) for line in self.lines(run)],
                         [('failed', True), ('resumed', None), ('failed', False)])
        self.expect(launch(config).end(), OK)  # without the fault it goes on
        self.assertEqual(run.steps(), list(range(1, 13)))

    def test_a_resumed_run_that_ends_in_its_first_step_has_failed_at_that_step(self):
        config, run = self.config(train={'steps': 6}, checkpoint={'every': 3}, execution={'watchdog_s': 2})
        self.expect(millrace('train', config, ranks=2), OK)
        outcome = self.expect(launch(config, '--set', 'train.steps=12', env={'MILLRACE_INJECT': '7:1:skip=h.0'}).end(), HUNG)
        self.expect_line(outcome.err, 'after step 6; restart 1 of')
        self.expect_line(outcome.err, 'after step 6: not started again: it ended twice after step 6 without progress in between')

    def test_mistakes_are_not_started_again(self):
        config, run = self.config()
        outcome = self.expect(launch(config, '--set', 'train.stepz=3').end(), BAD_CONFIG)
        self.expect_line(outcome.err, 'train.stepz')
        self.assertFalse(os.path.exists(run.path))
        outcome = self.expect(launch(config, '--set', 'data.path=/nowhere').end(), BAD_DATA)
        self.expect_line(outcome.err, '^millrace launch: mpirun ended with exit code 3 .data. before its first step: not started again')
        outcome = self.expect(launch(config, '--set', 'checkpoint.resume=never').end(), BAD_CONFIG)
        self.expect_line(outcome.err, 'checkpoint.resume is never')
        for words in ((), ('--', 'eval', config)):
            self.expect_line(self.expect(millrace('launch', *words), BAD_CONFIG).err, 'supervises `train` alone')
        outcome = self.expect(start('launch', '--mpirun', '/nowhere/mpirun -n 2', '--', 'train', config).end(), BAD_CONFIG)
        self.expect_line(outcome.err, 'cannot start /nowhere/mpirun: No such file')

    def test_starts_that_come_to_no_step_end_after_the_third(self):
        config, run = self.config()
        outcome = self.expect(start('launch', '--mpirun', 'false', '--', 'train', config).end(), RANK_LOST)
        self.expect_line(outcome.err, '^millrace launch: false ended with exit code 1 before its first step; restart', 2)
        self.expect_line(outcome.err, 'not started again: 3 attempts in a row ended before their first step; its exit code is 1$')
        self.assertGreater(outcome.seconds, 1.5)  # pauses of 0.5 and 1 s

    def test_restarts_are_limited(self):
        config, run = self.config(train={'steps': 100000, 'micro_batch': 8})
        job = self.started(launch(config, options=('--max-restarts', 0)), run, 3)
        os.kill(rank_pids(self.folder)[0], signal.SIGKILL)
        outcome = self.expect(job.end(), RANK_LOST)
        self.expect_line(outcome.err, 'not started again: it was restarted 0 times')

    def test_a_signal_saves_and_the_same_command_goes_on(self):
        config, run, twin = self.configs(checkpoint={'every': 1000})
        last = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            job = launch(config, env=holding(last + 5))
            with self.held(job, run, last + 5) as rank:
                job.signal(number)
                wait_until(lambda: pending(rank), 'the request at rank 1', job=job)
            self.expect(job.end(), PREEMPTED)
            last = run.steps()[-1]
            self.assertEqual(run.checkpoints()[-1], 'step_%08d' % last)
            self.assertTrue(run.summary()['preempted'])
        self.expect(launch(config).end(), OK)
        self.expect_same(run, twin)
        self.assertFalse(os.path.exists(run.file('restarts.jsonl')))

    def test_a_signal_at_a_start_stops_too(self):
        config, run = self.config(train={'steps': 100000})
        for delay in (0.05, 0.15, 0.3):
            job = launch(config)
            time.sleep(delay)
            job.signal(signal.SIGTERM)
            outcome = job.end()
            self.assertIn(outcome.code, (PREEMPTED, -signal.SIGTERM, STOPPED), outcome)  # before anything was set up, it is just ended
            self.assertEqual(rank_pids(self.folder), {})

    def script(self, text):
        """For --mpirun. Touches the file `begun` first."""
        path = self.path('script.sh')
        with open(path, 'w') as f:
            f.write('#!/bin/sh\ntouch "%s"\n%s\n' % (self.path('begun'), text))
        os.chmod(path, 0o755)
        return path

    def test_a_signal_before_there_is_anything_to_save_ends_the_run(self):
        config, run = self.config()
        job = start('launch', '--mpirun', self.script('exec sleep 1000'), '--', 'train', config)
        wait_until(lambda: os.path.exists(self.path('begun')), 'the start', job=job)
        wait_until(lambda: read('/proc/%d/cmdline' % mpirun_of(job)).startswith(b'sleep'), 'sh to become sleep', job=job)
        job.signal(signal.SIGTERM)
        self.expect(job.end(60), PREEMPTED)

    def test_a_signal_between_two_attempts_is_the_end(self):
        def attempt(number):
            config, run = self.config(run='run%d' % number)
            job = start('launch', '--mpirun', self.script('exit 1'), '--', 'train', config)
            wait_until(lambda: os.path.exists(run.file('restarts.jsonl')), 'the first failure', job=job)
            os.remove(self.path('begun'))
            job.signal(signal.SIGTERM)  # in the pause of half a second
            late = time.time() - os.path.getmtime(run.file('restarts.jsonl')) > 0.4
            outcome = job.end(60)
            return outcome, late

        outcome = self.expect(self.unless_late(attempt), PREEMPTED)
        self.expect_line(outcome.err, '^millrace launch: stopped before the run was started$')
        self.assertFalse(os.path.exists(self.path('begun')))

    def test_a_second_signal_and_the_end_of_patience_kill(self):
        # Steps of a minute.
        config, run = self.config(train={'steps': 50, 'micro_batch': 64, 'accumulate': 8000}, execution={'watchdog_s': 0})
        for options, signals, words in (((), 2, 'on the second request'), (('--grace-s', 1), 1, 'did not stop within 1 s')):
            job = launch(config, options=options)
            wait_until(lambda: os.path.exists(run.file('metrics.jsonl')), 'the first step', job=job)
            began = time.monotonic()
            for _ in range(signals):
                job.signal(signal.SIGTERM)
                time.sleep(0.3)
            outcome = self.expect(job.end(), STOPPED)
            self.assertLess(time.monotonic() - began, 20)
            self.expect_line(outcome.err, words)
            self.assertEqual(rank_pids(self.folder), {})
            os.remove(run.file('metrics.jsonl'))

    def test_signals_that_come_together_are_one_request(self):
        # A terminal that closes sends SIGHUP, and so does its shell.
        config, run = self.config(train={'steps': 100000, 'micro_batch': 8}, checkpoint={'every': 100000})
        for numbers in ((signal.SIGHUP, signal.SIGHUP), (signal.SIGTERM, signal.SIGHUP)):
            def attempt(_):
                job = self.started(launch(config), run, len(run.metrics()) + 3)
                began = time.monotonic()
                for number in numbers:
                    job.signal(number)
                    time.sleep(0.01)
                late = time.monotonic() - began > 0.08  # those that come within 100 ms
                outcome = job.end()
                return outcome, late and outcome.code == STOPPED

            self.expect(self.unless_late(attempt), PREEMPTED)
            self.assertEqual(run.checkpoints()[-1], 'step_%08d' % run.steps()[-1])

    def test_an_mpirun_without_ranks_that_waits_for_itself_is_ended(self):
        config, run = self.config()
        with open(self.path('code.py'), 'w') as f:
            f.write('import subprocess, sys, threading\nrank = subprocess.Popen(["sleep", "0.6"])\n'
                    'token = [word[10:] for word in sys.argv if word.startswith("--as-rank=")][0]\n'
                    'print("\\x1emillrace-rank %s 0 1 %d" % (token, rank.pid), file=sys.stderr, flush=True)\nrank.wait()\n'
                    'lock = threading.Lock()\nlock.acquire()\nlock.acquire()\n')
        os.mkdir(self.path('bin'))
        shutil.copy(os.path.realpath(sys.executable), self.path('bin', 'mpirun'))  # known by its name
        job = start('launch', '--mpirun', '%s %s' % (self.path('bin', 'mpirun'), self.path('code.py')), '--max-restarts', 0, '--', 'train', config)
        outcome = self.expect(job.end(60), CODE_UNKNOWN)
        self.expect_line(outcome.err, '^millrace launch: mpirun did not end although no rank was left, and was killed before its first step: not')

    def test_a_program_that_had_a_child_and_computes_is_no_hung_mpirun(self):
        config, run = self.config()
        wrapper = self.path('wrapper.sh')
        with open(wrapper, 'w') as f:
            f.write('#!/bin/bash\nsleep 0.6\nwhile ((SECONDS < 8)); do :; done\nexec "$@"\n')  # without a child for 7 s
        os.chmod(wrapper, 0o755)
        outcome = self.expect(start('launch', '--mpirun', wrapper, '--max-restarts', 0, '--', 'train', config).end(), OK)
        self.assertGreater(outcome.seconds, 7)
        self.assertEqual(run.steps(), list(range(1, 7)))

    def test_children_that_it_did_not_start_are_left_alone(self):
        config, run = self.config(train={'steps': 100000, 'micro_batch': 8}, checkpoint={'every': 5})
        # sh starts one, and becomes the supervisor.
        script = 'sleep 1000 & echo $! >"$0"; exec "$@"'
        job = Job(['sh', '-c', script, self.path('pid'), PROGRAM, 'launch', '--ranks', '2', '--', 'train', config],
                  environment())
        with open(wait_until(lambda: os.path.exists(self.path('pid')) and self.path('pid'), 'the child', job=job)) as f:
            bystander = wait_until(lambda: (f.seek(0), f.read().strip())[1], 'its pid', job=job)
        try:
            with self.stopped(job, run, 3) as rank:
                os.kill(rank, signal.SIGKILL)
            outcome = self.stopped_after_its_restart(job, run)
            self.expect_line(outcome.err, 'restart 1 of at most 100')
            self.assertFalse(is_over(int(bystander)))
            self.assertEqual(rank_pids(self.folder), {})
        finally:
            if not is_over(int(bystander)):
                os.kill(int(bystander), signal.SIGKILL)

    def test_an_empty_mpirun_is_refused(self):
        config, run = self.config()
        for words in ('', ' '):
            outcome = self.expect(start('launch', '--mpirun', words, '--', 'train', config).end(), BAD_CONFIG)
            self.assertIn('--mpirun', outcome.err)
            self.assertFalse(os.path.exists(run.path))

    def test_two_supervisors_of_one_run_are_refused(self):
        config, run, twin = self.configs()
        job = launch(config, env=holding(4))
        with self.held(job, run, 4):
            outcome = self.expect(launch(config).end(), BAD_CONFIG)
            self.expect_line(outcome.err, r'^millrace: run\.dir %s is in use by pid %d on host .*launch\.lock' % (run.path, job.process.pid))
        self.expect(job.end(), OK)
        self.expect_same(run, twin)

    def test_a_reader_that_goes_away_does_not_end_the_run(self):
        config, run, twin = self.configs()
        process = subprocess.Popen([PROGRAM, 'launch', '--ranks', '2', '--', 'train', config], env=environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertIn(b'training ', process.stdout.readline())
        process.stdout.close()
        self.assertEqual(process.wait(TIMEOUT_S), OK, process.stderr.read())
        process.stderr.close()
        self.expect_same(run, twin)

    def test_output_arrives_whole_and_the_launcher_gives_its_ranks(self):
        config, run, twin = self.configs()
        outcome = self.expect(millrace('launch', '--', 'train', config, ranks=2), OK)
        self.assertEqual(self.status_steps(outcome.out), list(range(1, STEPS + 1)))
        self.expect_line(outcome.out, '^training .* on 2 ranks')
        self.expect_line(outcome.out, '^run: ')
        self.expect_same(run, twin)

    def test_the_report_shows_restarts(self):
        config, run, twin = self.configs()
        job = launch(config, env=holding(9))
        with self.held(job, run, 9):
            os.kill(mpirun_of(job), signal.SIGKILL)
        self.expect(self.ended(job), OK)
        self.expect(millrace('report', run.path), OK)
        with open(run.file('report.html')) as f:
            page = f.read()
        section = page[page.index('id="calls"'):]
        section = section[:section.index('</section>')]
        self.assertIn('mpirun was killed by SIGKILL', section)
        self.assertIn('<td class="n">%d</td>' % self.lines(run)[0]['step'], section)


if __name__ == '__main__':
    unittest.main(verbosity=2)
