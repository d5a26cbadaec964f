"""What a stranger does: output that cannot be written, closed descriptors, devices in place of files, numbers that a float32 cannot hold."""
import fcntl
import json
import os
import re
import socket
import subprocess
import unittest

from harness import BAD_CHECKPOINT, BAD_CONFIG, IO_FAILED, OK, LAUNCHER, PROGRAM, CliTest, environment, millrace, program

LIMIT_S = 120


def shell(script, *args, env=None):
    """(exit code, standard error) of a bash script; $1 and so on are the arguments."""
    done = subprocess.run(['bash', '-c', script, 'bash'] + [str(a) for a in args], env=environment(env), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S)
    return done.returncode, done.stderr.decode(errors='replace')


def until_its_first_line(*words):
    """(exit code, standard error) of a command whose reader goes away after a line, well before the last one: the pipe holds no more than 4 KiB."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen([str(w) for w in words], env=environment(), stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        with os.fdopen(reading) as lines:
            lines.readline()
        _, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, err.decode(errors='replace')


class Edges(CliTest):

    def test_output_that_is_lost_is_an_exit_code_and_training_goes_on(self):
        config, run = self.config(train={'steps': 400}, checkpoint={'every': 200})
        for words in ('config show "$2"', 'config schema', 'plan "$2" --json', 'bench "$2" --steps 1 --warmup 1'):
            code, err = shell('"$1" %s >/dev/full' % words, PROGRAM, config)
            self.assertEqual(code, IO_FAILED, words + err)
            self.expect_line(err, '^millrace: standard output could not be written to its end')
        code, err = until_its_first_line(PROGRAM, 'train', config)
        self.assertEqual((code, run.steps()), (OK, list(range(1, 401))), err)
        self.expect_line(err, 'warning: standard output could not be written to its end')
        code, err = shell('"$1" eval "$2" >/dev/full', PROGRAM, config)
        self.assertEqual(code, IO_FAILED, err)

    def test_mpirun_does_not_crash_when_its_reader_ends(self):
        config, run = self.config(train={'steps': 400}, checkpoint={'every': 200})
        code, err = until_its_first_line(LAUNCHER, '-n', 2, 'train', config)
        self.assertEqual((code, run.steps()), (OK, list(range(1, 401))), err)
        self.expect_line(err, r'^millrace: standard output takes no more \(.*\); the job goes on\.$')
        self.assertNotIn('mpirun', err)
        code, err = shell('"$1" -n 2 eval "$2" >/dev/full', LAUNCHER, config)
        self.assertEqual(code, IO_FAILED, err)

    def test_a_line_on_standard_error_is_one_write(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps what was written at once apart
        with ours, theirs:
            code = subprocess.run([PROGRAM, 'eval', self.path('none.json'), '--set', 'a=b', '--set', 'c'], stdin=subprocess.DEVNULL, stderr=theirs,
                                  timeout=LIMIT_S).returncode
            theirs.shutdown(socket.SHUT_WR)
            writes = list(iter(lambda: ours.recv(65536), b''))
        self.assertEqual(code, BAD_CONFIG)
        self.assertGreaterEqual(len(writes), 1)
        for write in writes:
            self.assertTrue(write.endswith(b'\n'), writes)

    def test_a_limit_on_the_size_of_files_is_a_failed_write(self):
        config, run = self.config()
        code, err = shell('ulimit -f 1; "$1" train "$2"', PROGRAM, config)
        self.assertEqual(code, IO_FAILED, err)
        self.expect_line(err, r'^millrace: cannot write to .*: File too large$')

    def test_a_full_disk_under_the_metrics_is_said_once_and_training_goes_on_unless_asked_to_stop(self):
        for on_error, last in (('continue', 400), ('stop', None)):
            config, run = self.config(run=on_error, train={'steps': 400}, checkpoint={'every': 0, 'on_error': on_error})
            code, err = shell('ulimit -f 64; "$1" train "$2" >"$3"', PROGRAM, config, self.path('out'))
            self.assertEqual(code, IO_FAILED, err)
            refused = 'cannot append to %s: .*' % run.file('metrics.jsonl')
            with open(self.path('out')) as out:
                steps = re.findall(r'^step (\d+)/400', out.read(), re.M)
            if on_error == 'stop':
                self.expect_line(err, '^millrace: step %s: %s$' % (steps[-1], refused))
                self.assertLess(int(steps[-1]), 400)
            else:
                self.expect_line(err, '^millrace: warning: step [0-9]+: %s; training goes on, and its lines wait in memory$' % refused)
                self.assertEqual(steps[-1], '400')
            self.assertLess(run.metrics()[-1]['step'], 400)  # whole lines

    def test_checkpoints_on_a_disk_that_is_not_mounted_are_no_run_that_begins(self):
        config, run = self.config()
        os.makedirs(self.path('disk'))
        os.makedirs(run.path)
        os.symlink(self.path('disk'), run.file('checkpoints'))
        self.expect(millrace('train', config), OK)
        before = run.metrics()
        os.rename(self.path('disk'), self.path('away'))
        self.expect_line(self.expect(millrace('train', config), IO_FAILED).err, 'checkpoints: it is a link to what is not there')
        self.assertEqual(run.metrics(), before)
        os.rename(self.path('away'), self.path('disk'))
        self.expect_line(self.expect(millrace('train', config), OK).out, 'is complete: 6 of 6 steps')

    def test_what_is_printed_never_lands_in_a_file_of_the_run(self):
        for closed in ('>&-', '<&- >&-', '<&- >&- 2>&-'):
            config, run = self.config(run='run' + str(len(closed)))
            code, err = shell('"$1" train "$2" ' + closed, PROGRAM, config)
            self.assertEqual((code, run.steps()), (OK, list(range(1, 7))), err)
            # Their numbers are taken, by /dev/null: a closed output is not an error.
            self.assertNotIn('standard output', err)
            self.expect(program('inspect', run.path), OK)

    def test_a_device_or_pipe_is_not_replaced_by_a_file(self):
        config, _ = self.config()
        pipe = self.path('pipe')
        os.mkfifo(pipe)
        for option in ('--html', '--trace'):
            outcome = self.expect(program('plan', config, option, pipe), IO_FAILED)
            self.expect_line(outcome.err, 'cannot write %s: it exists and is not a regular file$' % pipe)
            self.assertEqual(os.listdir(self.folder).count('pipe'), 1)
        self.assertNotIn('pipe.tmp', os.listdir(self.folder))

    def test_a_pipe_in_the_place_of_a_file_of_the_run_hangs_nobody(self):
        # What is opened for writing, or read before that. A pipe that nobody reads or writes makes a plain open wait without end.
        for name, code, said in (('metrics.jsonl', IO_FAILED, r'metrics\.jsonl is not a regular file$'),
                                 ('summary.json', OK, ''), ('summary.json.tmp', IO_FAILED, r'summary\.json\.tmp: it exists and is not a regular file$'),
                                 ('.progress/job/rank_0', OK, ''), ('logs/rank_0.log', OK, r'no log is kept in \S+/logs: Not a regular file$')):
            with self.subTest(name):
                config, run = self.config(run='run_' + re.sub(r'\W', '_', name))
                os.makedirs(os.path.dirname(run.file(name)))
                os.mkfifo(run.file(name))
                # A single rank has no board of progress.
                outcome = self.expect(millrace('train', config, ranks=2 if 'progress' in name else 1, timeout=60), code)
                self.expect_line(outcome.err, said or 'pipe', count=1 if said else 0)
                if code == OK:
                    self.assertEqual(run.summary()['last_step'], 6)
        # Of a run that is complete: the summary's place is taken.
        config, run = self.config(run='complete')
        self.expect(millrace('train', config), OK)
        os.remove(run.file('summary.json'))
        os.mkfifo(run.file('summary.json'))
        outcome = self.expect(millrace('train', config, timeout=60), IO_FAILED)
        self.expect_line(outcome.err, r'cannot write \S+/summary\.json: it exists and is not a regular file$')
        os.remove(run.file('summary.json'))
        os.remove(run.file('metrics.jsonl'))
        os.mkfifo(run.file('metrics.jsonl'))
        outcome = self.expect(millrace('train', config, timeout=60), OK)
        self.expect_line(outcome.err, r'losses are missing, too: metrics\.jsonl has no line of step 1 and 6$')

    def test_numbers_that_kernels_would_take_for_0_or_infinity_are_refused(self):
        config, _ = self.config()
        for assignment in ('model.norm_eps=1e-50', 'model.norm_eps=1e300', 'optimizer.eps=1e-300', 'model.rope_theta=1e-300',
                           'memory.budget_gib=1e-30', 'memory.budget_gib=1e30', 'model.seq_len=4194305'):
            key, value = assignment.split('=')
            outcome = self.expect(program('config', 'validate', config, '--set', assignment), BAD_CONFIG)
            self.expect_line(outcome.err, '%s = %s: must be an? (number|integer) from ' % (key, value))
        outcome = self.expect(program('config', 'validate', '/dev/zero'), BAD_CONFIG)
        self.expect_line(outcome.err, '/dev/zero: cannot be read: File too large')
        code, err = shell(r'''"$1" config validate "$2" --set run.dir=$'\xff' ''', PROGRAM, config)
        self.assertEqual(code, BAD_CONFIG)
        self.assertIn('must be a string that is not empty, in UTF-8', err)
        for words in (('--temperature', 'nan'), ('--seed', '99999999999999999999'), ('--seed', '-1')):
            outcome = self.expect(program('generate', config, *words), BAD_CONFIG)
            self.assertIn(words[0], outcome.err)

    def test_inspect_takes_the_folder_of_checkpoints_too(self):
        run = self.trained('plain')
        outcome = self.expect(program('inspect', run.file('checkpoints'), '--json'), OK)
        self.assertEqual([json.loads(line)['step'] for line in outcome.out.splitlines()], [6, 4])
        empty = self.path('empty')
        os.makedirs(os.path.join(empty, 'checkpoints'))
        self.expect(program('inspect', empty), BAD_CHECKPOINT)

    def test_temporary_folders_of_any_name_and_none(self):
        config, run = self.config()
        odd = self.path("it's  a folder")
        os.mkdir(odd)
        self.expect(millrace('train', config, ranks=2, env={'TMPDIR': odd}), OK)
        self.assertEqual(os.listdir(odd), [], 'left behind')
        outcome = self.expect(millrace('train', config, ranks=2, env={'TMPDIR': self.path('none')}), IO_FAILED)
        self.expect_line(outcome.err, '^millrace: no temporary folder can be made in %s' % self.path('none'))


if __name__ == '__main__':
    unittest.main()
