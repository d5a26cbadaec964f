"""More ranks than cores, whose words reach the user, and how long a start takes."""
import os
import subprocess
import time
import unittest

from harness import BAD_CONFIG, LAUNCHER, OK, PROGRAM, SLOWER, CliTest, Job, environment, millrace, raw_mpirun


class Ranks(CliTest):

    def test_more_ranks_than_cores_finish_and_speak_once(self):
        config, run = self.config(train={'steps': 8, 'accumulate': 1})
        for start in (lambda: millrace('train', config, ranks=5), lambda: raw_mpirun(5, 'train', config, '--set', 'checkpoint.resume=never')):
            outcome = self.expect(start(), OK)
            self.assertLess(outcome.seconds, 60 * SLOWER, outcome)
            self.assertEqual(self.status_steps(outcome.out), list(range(1, 9)), outcome)
            for pattern in ('^training ', '^trained steps 1 to 8', '^run: '):
                self.expect_line(outcome.out, pattern)
            # A pipe gets lines, no bar and no carriage returns.
            self.assertNotIn('\r', outcome.out)
            self.assertNotIn('[#', outcome.out)
            for line in outcome.out.splitlines():
                self.assertTrue(line.startswith(('training ', 'step ', 'trained ', 'sample:', 'run: ')) or outcome.out.index('sample:') <
                                outcome.out.index(line), line)
            self.assertEqual([line['step'] for line in run.metrics()], list(range(1, 9)))

    def test_ranks_that_are_configured_differently_do_not_start(self):
        config, run = self.config()
        begin = ['mpirun', '--oversubscribe', '--bind-to', 'none']
        for other, words in (('train.steps=3', 'rank 1 is configured otherwise than rank 0: train.steps is 3'),
                             ('train.stepz=3', 'rank 1, but not rank 0: ')):
            parts = ['-n', '1', PROGRAM, 'train', config, ':', '-n', '1', PROGRAM, 'train', config, '--set', other]
            outcome = self.expect(Job(begin + parts, environment()).end(), BAD_CONFIG)
            self.assertEqual(outcome.err.count(words), 1, outcome)
            self.assertFalse(os.path.exists(run.file('metrics.jsonl')), outcome)

    def test_a_terminal_gets_a_bar(self):
        config, run = self.config()
        master, slave = os.openpty()
        try:
            process = subprocess.Popen([LAUNCHER, '-n', '2', 'train', config], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE,
                                       env=environment({'TERM': 'xterm'}), start_new_session=True)
            os.close(slave)
            text = b''
            while True:
                try:
                    piece = os.read(master, 65536)
                except OSError:  # the other end is closed
                    break
                if not piece:
                    break
                text += piece
            self.assertEqual(process.wait(60), 0, process.stderr.read())
            process.stderr.close()
        finally:
            os.close(master)
        text = text.decode()
        self.assertIn('[#####.........................]  16%  eta ', text)
        self.assertIn('\r\x1b[K', text)
        self.assertIn('step 6/6  loss ', text)

    def test_a_start_takes_less_than_two_seconds(self):
        config, _ = self.config(train={'steps': 1}, optimizer={'schedule': {'kind': 'constant', 'warmup': 0, 'min_lr': 0}})
        def attempt(_):
            begin = time.monotonic()
            outcome = millrace('train', config, '--set', 'checkpoint.resume=never', ranks=2)
            seconds = time.monotonic() - begin
            self.expect(outcome, OK)
            print('a whole run of one step on two ranks: %.2f s' % seconds)
            return outcome, seconds >= 2 * SLOWER  # the machine may be busy with other things

        self.unless_late(attempt, tries=12)


if __name__ == '__main__':
    unittest.main(verbosity=2)
