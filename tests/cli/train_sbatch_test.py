"""What tools/slurm/train.sbatch decides, by exit code and request: with a srun and a scontrol of this test's in place of Slurm's."""
import os
import signal
import subprocess
import tempfile
import time
import unittest

# srun: says who it is, and ends with the code that `code` holds once that is there; a request ends its wait as it ends the ranks' training.
SRUN = '''#!/bin/bash
trap 'echo requested >>"$FOLDER/requests"' USR1
echo "$@" >"$FOLDER/words"
until [[ -e $FOLDER/code ]]; do sleep 0.01; done
exit "$(<"$FOLDER/code")"
'''
SCONTROL = '#!/bin/bash\necho "$@" >>"$FOLDER/asked"\n'


class TrainSbatch(unittest.TestCase):

    def run_script(self, code, request=None, restarts=0):
        """(exit code, what was asked of Slurm, output); srun ends with `code`, after the script was sent `request`."""
        with tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR')) as folder:
            for name, text in (('srun', SRUN), ('scontrol', SCONTROL)):
                path = os.path.join(folder, name)
                with open(path, 'w') as f:
                    f.write(text)
                os.chmod(path, 0o755)

            def read(name):
                try:
                    with open(os.path.join(folder, name)) as f:
                        return f.read()
                except FileNotFoundError:
                    return ''

            env = dict(os.environ, PATH=folder + ':' + os.environ['PATH'], FOLDER=folder, SLURM_JOB_ID='17', MILLRACE='the program')
            if restarts:
                env['SLURM_RESTART_COUNT'] = str(restarts)
            job = subprocess.Popen(['bash', 'tools/slurm/train.sbatch', 'a.json', '--set', 'b=c d'], env=env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            while not read('words'):
                self.assertIsNone(job.poll())
                time.sleep(0.002)
            self.assertEqual(read('words'), '--mpi=pmix --kill-on-bad-exit=1 the program train a.json --set b=c d\n')
            if request is not None:
                job.send_signal(request)
                while not read('requests'):
                    self.assertIsNone(job.poll())
                    time.sleep(0.002)
            partial = os.path.join(folder, 'partial')
            with open(partial, 'w') as f:
                f.write('%d\n' % code)
            os.rename(partial, os.path.join(folder, 'code'))
            out, _ = job.communicate()
            return job.returncode, read('asked'), out.decode()

    def expect(self, code, why, **how):
        ended, asked, out = self.run_script(code, **how)
        self.assertEqual(ended, code, out)
        self.assertEqual(asked, 'requeue 17\n' if why else '')
        self.assertEqual(out, 'train.sbatch: exit code %d (%s): back into the queue\n' % (code, why) if why else '')

    def test_what_a_lost_rank_ends_with_goes_back_into_the_queue(self):
        for code in (71, 72, 76, 134, 137, 139):
            with self.subTest(code=code):
                self.expect(code, 'a rank was lost or hung')

    def test_ranks_that_srun_ended_go_back_unless_they_were_asked_to_end(self):
        self.expect(143, 'a rank was lost or hung')
        self.expect(143, None, request=signal.SIGUSR1)

    def test_mistakes_and_the_end_do_not(self):
        for code in (0, 1, 2, 3, 4, 5, 70, 74, 133, 140):
            with self.subTest(code=code):
                self.expect(code, None)

    def test_a_run_that_was_asked_to_save_goes_on_from_the_queue_however_often(self):
        self.expect(75, 'saved and stopped', request=signal.SIGUSR1)
        self.expect(75, 'saved and stopped', request=signal.SIGUSR1, restarts=1000)

    def test_losses_are_limited(self):
        self.expect(137, 'a rank was lost or hung', restarts=19)
        self.expect(137, None, restarts=20)

    def test_a_cancelled_job_stays_cancelled(self):
        for code in (75, 137, 143):
            with self.subTest(code=code):
                self.expect(code, None, request=signal.SIGTERM)


if __name__ == '__main__':
    unittest.main(verbosity=2)
