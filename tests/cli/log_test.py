"""What ranks say: which messages the terminal shows and how often, what run.dir/logs keeps, and a failed rank's last lines."""
import os
import re
import signal
import unittest

from harness import (BAD_CHECKPOINT, BAD_CONFIG, IO_FAILED, OK, PREEMPTED, PROGRAM, RANK_LOST, CliTest, millrace, program, rank_pids, raw_mpirun, read, start,
                     wait_until)

CRASHED = 70
TIME = r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z'


class Logs(CliTest):

    def log(self, run, name):
        with open(run.file('logs', name)) as f:
            return f.read().splitlines()

    def last_lines(self, run, rank, start=1):
        """What is to be shown of the rank's log: up to 20 lines behind the header of that start."""
        starts = re.split(r'^.*  start \d+: .*\n', ''.join(line + '\n' for line in self.log(run, 'rank_%d.log' % rank)), flags=re.M)
        return ['  ' + line for line in starts[start].splitlines()[-20:]]

    def block(self, err, who, rank):
        """The lines of `rank` that are shown, and the line that follows them."""
        lines = err.splitlines()
        heads = [i for i, line in enumerate(lines) if re.search(r'^%s: the last lines of rank \d+ \(\S+\):$' % who, line)]
        self.assertEqual(len(heads), 1, err)
        self.assertRegex(lines[heads[0]], r'of rank %d \(\S+/logs/rank_%d\.log\):$' % (rank, rank))
        end = heads[0] + 1
        while end < len(lines) and re.match('  %s ' % TIME, lines[end]):
            end += 1
        self.assertLessEqual(end - heads[0] - 1, 20)
        return lines[heads[0] + 1:end], lines[end:]

    def test_every_rank_keeps_a_log_and_a_later_start_appends(self):
        config, run = self.config()
        for start_number in (1, 2):
            outcome = self.expect(millrace('train', config, '--set', 'train.steps=%d' % (4 * start_number), ranks=3), OK)
            self.assertEqual(outcome.err, '')
            for rank in range(3):
                lines = self.log(run, 'rank_%d.log' % rank)
                for line in lines:
                    self.assertRegex(line, r'^%s (debug  |info   ) rank %d  \S' % (TIME, rank))
                starts = [line for line in lines if re.search(r'  start \d+: ', line)]
                self.assertEqual(len(starts), start_number)
                self.assertRegex(starts[-1], r'  start %d: rank %d of 3, pid \d+ on \S+: \S+ train \S+/config\.json --set train\.steps=%d$'
                                 % (start_number, rank, 4 * start_number))
                self.assertEqual([m.group(1) for m in re.finditer(r'  step (\d+): loss ', '\n'.join(lines))],
                                 [str(step) for step in range(1, 4 * start_number + 1)])
            self.assertEqual(sorted(os.listdir(run.file('logs'))), ['rank_0.log', 'rank_1.log', 'rank_2.log'])
        self.assertRegex('\n'.join(lines), r'  loaded step 4 from ')

    def test_the_level_governs_standard_error_and_not_the_files(self):
        for level, shown in (('trace', ['trace', 'debug', 'warning']), ('debug', ['debug', 'warning']), ('info', ['warning']),
                             ('warning', ['warning']), ('error', [])):
            config, run = self.config(run='run_' + level, train={'steps': 3})
            # A step that is skipped on all ranks is rank 0's to say.
            outcome = self.expect(millrace('train', config, '--set', 'run.log_level=' + level, ranks=3, env={'MILLRACE_INJECT': '2:1:loss'}), OK)
            with self.subTest(level):
                said = {line.split(': ')[1] for line in outcome.err.splitlines()}
                self.assertEqual(said, set(shown), outcome)
                if shown:
                    self.expect_line(outcome.err, r'^millrace: warning: step 2: non-finite loss on rank 1; ')
                # A line that all ranks have comes once, one that each has for itself with the rank.
                self.expect_line(outcome.err, r'^millrace: debug: step 3: loss ', count=1 if 'debug' in shown else 0)
                self.expect_line(outcome.err, r'^millrace: debug: rank [012]: ready: plans ', count=3 if 'debug' in shown else 0)
                self.expect_line(outcome.out, r'^(millrace|\d{4}-)', count=0)
                self.assertEqual(self.status_steps(outcome.out), [1, 2, 3])
                for rank in range(3):
                    text = '\n'.join(self.log(run, 'rank_%d.log' % rank))
                    self.assertEqual(len(re.findall(r' debug   rank %d  step \d+: loss ' % rank, text)), 3)
                    self.assertEqual(' trace ' in text, level == 'trace')
                    self.assertEqual(' warning ' in text, rank == 0)
        outcome = self.expect(millrace('train', config, '--set', 'run.log_level=loud', ranks=3), BAD_CONFIG)
        self.assertRegex(outcome.err, r'run\.log_level.*loud')
        for name in ('trace', 'debug', 'info', 'warning', 'error'):
            self.assertIn(name, outcome.err)

    def test_notices_of_other_verbs_are_messages_too(self):
        config, run = self.config(run='run')
        self.expect(millrace('train', config, ranks=3), OK)
        before = [self.log(run, name) for name in sorted(os.listdir(run.file('logs')))]
        outcome = self.expect(millrace('eval', config, ranks=3), OK)
        self.expect_line(outcome.err, '^millrace: weights of step 6 from ')
        self.assertEqual(self.expect(millrace('eval', config, '--set', 'run.log_level=warning', ranks=3), OK).err, '')
        self.assertEqual([self.log(run, name) for name in sorted(os.listdir(run.file('logs')))], before)  # not theirs

    def test_a_warning_is_said_once_with_the_ranks_that_have_it(self):
        for blocked, said in (((0, 1, 2), ''), ((1, 2), 'ranks 1-2: '), ((1,), 'rank 1: ')):
            config, run = self.config(run='run_%d' % len(blocked))
            for rank in blocked:
                os.makedirs(run.file('logs', 'rank_%d.log' % rank))  # a folder, which no line can be written to
            outcome = self.expect(millrace('train', config, ranks=3), OK)
            with self.subTest(blocked):
                self.assertEqual(outcome.err, 'millrace: warning: %sno log is kept in %s: Is a directory\n' % (said, run.file('logs')))
                self.assertEqual(run.steps(), [1, 2, 3, 4, 5, 6])
                for rank in set(range(3)) - set(blocked):
                    self.assertRegex(self.log(run, 'rank_%d.log' % rank)[-1], '  step 6: ')

    def test_a_log_that_cannot_be_written_ends_no_run(self):
        config, run = self.config()
        os.makedirs(run.file('logs'))
        for rank in range(3):
            os.symlink('/dev/full', run.file('logs', 'rank_%d.log' % rank))
        outcome = self.expect(millrace('train', config, ranks=3), OK)
        # Each rank's disk says so when it does: maybe not before the same step's vote.
        ranks = []
        for line in outcome.err.splitlines():
            said = re.fullmatch(r'millrace: warning: (?:ranks? ([-0-9, ]+): )?lines of the log in %s are lost: No space left on device'
                                % re.escape(run.file('logs')), line)
            self.assertTrue(said, outcome)
            for part in (said.group(1) or '0-2').split(', '):
                first, _, last = part.partition('-')
                ranks += range(int(first), int(last or first) + 1)
        self.assertEqual(sorted(ranks), [0, 1, 2], outcome)
        self.assertEqual(run.steps(), [1, 2, 3, 4, 5, 6])

    def killed(self, number, code):
        """Rank 1 of three, killed after a few steps. What is shown before the error, and its log."""
        config, run = self.config(train={'steps': 100000, 'micro_batch': 8}, checkpoint={'every': 0})
        job = start('train', config, ranks=3)
        wait_until(lambda: len(run.metrics()) >= 30, 'step 30', job=job)
        os.kill(rank_pids(self.folder)[1], number)
        outcome = self.expect(job.end(), code)
        lines, rest = self.block(outcome.err, 'millrace', 1)
        self.assertEqual(lines, self.last_lines(run, 1))
        self.assertGreaterEqual(max(int(m.group(1)) for m in re.finditer(r'  step (\d+): ', '\n'.join(lines))), 25)
        self.assertEqual(len(rest), 1, outcome.err)  # the error is the last thing that is said
        return rest[0]

    def test_the_last_lines_of_a_rank_that_crashed_are_shown_before_the_error(self):
        self.assertRegex(self.killed(signal.SIGSEGV, CRASHED), r'^millrace: rank 1 \(pid \d+\) on \S+ crashed with SIGSEGV')

    def test_the_last_lines_of_a_rank_that_was_killed_are_shown_before_the_error(self):
        self.assertRegex(self.killed(signal.SIGKILL, RANK_LOST), r'^millrace: rank 1 \(pid \d+\) on \S+ was killed by SIGKILL')

    def test_a_single_process_that_crashes_shows_its_last_lines(self):
        config, run = self.config(train={'steps': 1000000})
        job = start('train', config)
        wait_until(lambda: len(run.metrics()) >= 5, 'step 5', job=job)
        [pid] = [int(n) for n in os.listdir('/proc') if n.isdigit() and self.runs(n)]
        os.kill(pid, signal.SIGKILL)
        outcome = self.expect(job.end(), RANK_LOST)
        lines, rest = self.block(outcome.err, 'millrace', 0)
        self.assertEqual(lines, self.last_lines(run, 0))
        self.assertEqual(len(rest), 1, outcome.err)
        self.assertRegex(rest[0], r'^millrace: rank 0 on \S+ was killed by SIGKILL')

    def runs(self, pid):
        """Whether that process is the program itself, on this test's configuration."""
        try:
            with open('/proc/%s/cmdline' % pid, 'rb') as f:
                words = f.read().decode().split('\0')
        except OSError:
            return False
        return os.path.realpath(words[0]) == os.path.realpath(PROGRAM) and len(words) > 2 and words[1] == 'train' and self.folder in words[2]

    def test_a_rank_that_fails_by_itself_shows_its_last_lines_and_then_why(self):
        for run_with, name in ((lambda c: millrace('train', c, ranks=3, env=full), 'a'), (lambda c: raw_mpirun(3, 'train', c, env=full), 'b'),
                               (lambda c: program('train', c, env=alone), 'c')):
            full, alone = {'MILLRACE_INJECT_DISK': '1:full=100'}, {'MILLRACE_INJECT_DISK': '0:full=100'}
            config, run = self.config(run='run_' + name, checkpoint={'every': 4, 'on_error': 'stop', 'asynchronous': False})
            outcome = self.expect(run_with(config), IO_FAILED)
            with self.subTest(name):
                lines, rest = self.block(outcome.err, 'millrace', 0)
                self.assertRegex(lines[-1], r' debug   rank 0  step 4: saving$')
                if name == 'b':  # mpirun has words of its own, which may be first
                    rest = [line for line in rest if line.startswith('millrace: ')]
                self.assertRegex(rest[0], r'^millrace: (rank 0: )?step 4: not saved: (rank \d: )?')
                self.assertRegex(self.log(run, 'rank_0.log')[-1], r' error   rank 0  step 4: not saved: ')
                if name != 'b':
                    self.assertEqual(len(rest), 1, outcome.err)

    def deaf_mpirun(self):
        """Environment in which mpirun passes on nothing of what ranks say on standard error but who they are, as when it is late itself."""
        folder = self.path('bin')
        os.makedirs(folder)
        with open(os.path.join(folder, 'mpirun'), 'w') as f:
            # By its name: with a path, mpirun has ranks look for their libraries beside it.
            f.write('#!/bin/bash\nPATH=${PATH#*:}\nexec mpirun "$@" 2> >(exec grep -a --line-buffered millrace-rank >&2)\n')
        os.chmod(f.name, 0o755)
        return {'PATH': folder + ':' + os.environ['PATH']}

    def test_what_mpirun_does_not_pass_on_is_shown_from_the_logs(self):
        deaf = self.deaf_mpirun()
        for verb, who in (('train', 'millrace'), ('launch', 'millrace launch')):
            config, run = self.config(run='run_' + verb, checkpoint={'every': 4, 'on_error': 'stop', 'asynchronous': False})
            command = ['train', config] if verb == 'train' else ['launch', '--max-restarts', 0, '--', 'train', config]
            outcome = self.expect(millrace(*command, ranks=3, env=dict(deaf, MILLRACE_INJECT_DISK='1:full=100')), IO_FAILED)
            with self.subTest(verb):
                lines, rest = self.block(outcome.err, who, 0)
                self.assertRegex(lines[-1], r' debug   rank 0  step 4: saving$')
                self.assertRegex(rest[0], r'^%s: rank 0: step 4: not saved: rank \d: .*No space left' % who)
                self.assertEqual(len(rest), 1 if verb == 'train' else 2, outcome.err)
        # No log has it, and nothing is made up of an earlier start's.
        path = run.file('logs', 'rank_0.log')
        outcome = self.expect(millrace('eval', config, '--set', 'model.d_model=48', ranks=3, env=deaf), BAD_CHECKPOINT)
        self.assertTrue(os.path.exists(path))
        self.expect_line(outcome.err, r'^millrace: mpirun ended with exit code 4 .*; what the rank said is lost, and no log has it$')
        self.assertEqual(len(outcome.err.splitlines()), 1, outcome)
        # Nor is anything missed of a run that ends well, or on request.
        config, run = self.config(run='run_well')
        self.assertEqual(self.expect(millrace('train', config, ranks=3, env=deaf), OK).err, '')
        config, run = self.config(run='run_stopped', train={'steps': 1000000}, checkpoint={'every': 0})
        job = start('train', config, ranks=3, env=deaf)
        wait_until(lambda: len(run.metrics()) >= 5, 'step 5', job=job)
        job.signal(signal.SIGUSR1)
        self.assertEqual(self.expect(job.end(), PREEMPTED).err, '')

    def test_mistakes_of_the_user_are_said_alone(self):
        config, run = self.config(data={'path': self.path('none.txt')})
        outcome = millrace('train', config, ranks=3)
        self.assertEqual(len(outcome.err.splitlines()), 1, outcome)
        config, run = self.config(run='other')
        self.expect(millrace('train', config, ranks=3), OK)
        outcome = millrace('train', config, '--set', 'model.d_model=48', ranks=3)  # another model's checkpoint
        self.assertNotEqual(outcome.code, OK)
        self.assertNotIn('last lines', outcome.err)

    def test_a_supervisor_shows_the_last_lines_of_a_killed_rank_and_keeps_a_log(self):
        config, run = self.config(train={'steps': 100000, 'micro_batch': 8}, checkpoint={'every': 5})
        job = start('launch', '--ranks', 3, '--', 'train', config)
        wait_until(lambda: len(run.metrics()) >= 12, 'step 12', job=job)
        os.kill(wait_until(lambda: rank_pids(self.folder).get(2), 'rank 2'), signal.SIGKILL)
        wait_until(lambda: b'"resumed"' in read(run.file('restarts.jsonl')), 'the next attempt', job=job)
        log = self.log(run, 'launch.log')
        job.signal(signal.SIGTERM)
        outcome = self.expect(job.end(), PREEMPTED)
        lines, rest = self.block(outcome.err, 'millrace launch', 2)
        self.assertRegex('\n'.join(lines), r'  step \d+: loss ')
        self.assertEqual(lines, self.last_lines(run, 2))
        [said] = self.expect_line('\n'.join(rest), r'^millrace launch: a rank was killed by SIGKILL after step \d+; restart 1 of at most 100, ')
        self.assertRegex(log[0], r'^%s info    launch  start 1: supervisor, pid \d+ on \S+: ' % TIME)
        self.assertRegex(log[-1], r'^%s info    launch  %s$' % (TIME, re.escape(said[len('millrace launch: '):])))


if __name__ == '__main__':
    unittest.main()
