"""tools/slurm/train.sbatch on a Slurm cluster of two hosts (two_hosts.py) with a configuration of its own: no service of this machine is used.

Each host runs munged and slurmd, alpha also slurmctld; they end with the hosts.
"""
import contextlib
import os
import signal
import subprocess
import time
import unittest

import two_hosts
from harness import OK, PROGRAM, CliTest, environment, millrace, pending, wait_until

RANKS, STEPS = 4, 60

CONFIGURATION = """
ClusterName=test
SlurmctldHost=alpha({addresses[alpha]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/tmp/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=5
SlurmdTimeout=10
MailProg=/bin/true
NodeName=alpha NodeAddr={addresses[alpha]} CPUs=2
NodeName=beta NodeAddr={addresses[beta]} CPUs=2
PartitionName=main Nodes=ALL Default=YES State=UP
"""


class Cluster:

    def __init__(self, folder):
        self.hosts = two_hosts.TwoHosts(folder, own_pids=True)
        self.folder, self.daemons = folder, []
        os.mkdir(os.path.join(folder, 'state'))
        self.key = self.hosts.write('munge.key', os.urandom(64).hex())
        os.chmod(self.key, 0o400)
        self.hosts.write('cgroup.conf', '')
        configuration = self.hosts.write('slurm.conf', CONFIGURATION.format(addresses=two_hosts.ADDRESSES, folder=folder))
        self.environment = environment({
            'SLURM_CONF': configuration, 'MILLRACE': PROGRAM, 'OMPI_MCA_mpi_yield_when_idle': '1',  # there are fewer cores than ranks
            'OMPI_MCA_btl': 'tcp,self', 'OMPI_MCA_pml': 'ob1', 'OMPI_MCA_btl_tcp_if_include': two_hosts.INTERFACE})
        self.daemon(self.hosts.alpha, 'slurmctld', '-D')
        for host in (self.hosts.alpha, self.hosts.beta):
            self.start_node(host)

    def daemon(self, host, *words):
        with open(os.path.join(self.folder, 'daemons.log'), 'a') as log:
            self.daemons.append(subprocess.Popen(host.inside(*words), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def start_node(self, host):
        self.daemon(host, 'munged', '--foreground', '--force', '--socket=/tmp/munge.socket', '--key-file=' + self.key,
                    '--log-file=/tmp/munged.log', '--pid-file=/tmp/munged.pid', '--seed-file=/tmp/munge.seed', '--num-threads=2')
        self.daemon(host, 'sh', '-c', 'until munge --socket=/tmp/munge.socket -n >/dev/null 2>&1; do sleep 0.1; done; exec slurmd -D -N ' + host.name)

    def command(self, *words):
        """Of a user on alpha: (succeeded, output). Mostly asked again and again: with a pause."""
        time.sleep(0.2)
        done = subprocess.run(self.hosts.alpha.inside(*words), env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60)
        return done.returncode == 0, done.stdout.decode()

    def idle(self):
        return sorted(self.command('sinfo', '--noheader', '--Node', '--format=%N %t')[1].split()) == ['alpha', 'beta', 'idle', 'idle']

    def state(self, job):
        words = self.command('scontrol', '--oneliner', 'show', 'job', job)[1].split()
        return dict(word.split('=', 1) for word in words if '=' in word)

    def end(self):
        self.hosts.end()
        for daemon in self.daemons:
            daemon.wait()

    def logs(self):
        texts = []
        for name in ('daemons.log', 'slurmctld.log', 'job.log'):
            path = os.path.join(self.folder, name)
            if os.path.exists(path):
                with open(path) as f:
                    texts.append('== %s\n%s' % (name, f.read()[-4000:]))
        return '\n'.join(texts)


class Slurm(CliTest):

    def setUp(self):
        super().setUp()
        config, self.twin = self.config(name='twin.json', run='twin', **self.sections())
        self.expect(millrace('train', config, ranks=RANKS), OK)  # on one host, never stopped
        self.cluster = Cluster(self.folder)
        self.addCleanup(self.cluster.end)
        self.until(self.cluster.idle, 'both nodes')

    def sections(self):
        return {'train': {'steps': STEPS, 'micro_batch': 4, 'accumulate': 2}, 'model': {'seq_len': 64},
                'checkpoint': {'every': 10, 'asynchronous': False}}

    def until(self, condition, what):
        try:
            return wait_until(condition, what, timeout=90)
        except AssertionError as error:
            raise AssertionError('%s\n%s' % (error, self.cluster.logs())) from None

    def submitted(self):
        """(job, run) of the job script as tools/README.md shows it."""
        config, run = self.config(**self.sections())
        done, job = self.cluster.command('sbatch', '--parsable', '--ntasks-per-node=2', '--output', self.path('job.log'),
                                         'tools/slurm/train.sbatch', config)
        self.assertTrue(done, job)
        return job.strip(), run

    def expect_end(self, job, run, restarts):
        """At least so many: Open MPI's ranks now and then crash over TCP while they start, which costs another."""
        self.until(lambda: self.cluster.state(job).get('JobState') in ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEOUT'), 'the end of the job')
        state = self.cluster.state(job)
        self.assertEqual((state['JobState'], state['ExitCode']), ('COMPLETED', '0:0'), self.cluster.logs())
        self.assertGreaterEqual(int(state['Restarts']), restarts, self.cluster.logs())
        self.assertEqual(run.steps(), list(range(1, STEPS + 1)))
        self.assertEqual(run.loss_bits(), self.twin.loss_bits())
        self.assertEqual(run.hashes(), self.twin.hashes())

    def log(self):
        with open(self.path('job.log')) as f:
            return f.read()

    def test_a_job_that_is_asked_to_stop_saves_and_goes_on_from_the_queue(self):
        job, run = self.submitted()
        before = self.cluster.hosts.beta.sent_bytes()
        with self.held(run, 20) as rank:
            # What Slurm does a while before the time limit, by the script's --signal.
            self.cluster.command('scancel', '--signal=USR1', '--batch', job)
            self.until(lambda: pending(rank), 'the request at a rank')
        self.until(lambda: 'back into the queue' in self.log(), 'the request')
        self.assertLess(run.steps()[-1], STEPS)
        self.assertEqual(run.checkpoints()[-1], 'step_%08d' % run.steps()[-1])
        self.expect_line(self.log(), r'^train.sbatch: exit code 75 \(saved and stopped\): back into the queue$')
        self.expect_end(job, run, restarts=1)
        self.assertRegex(self.log(), '(?m)^resuming after step ')
        self.assertGreater(self.cluster.hosts.beta.sent_bytes() - before, 1 << 20)  # both nodes took part

    def test_a_killed_rank_sends_the_job_back_into_the_queue(self):
        job, run = self.submitted()
        with self.held(run, 25) as rank:
            os.kill(rank, signal.SIGKILL)
        self.until(lambda: 'back into the queue' in self.log(), 'the end')
        self.expect_line(self.log(), r'^train.sbatch: exit code 137 \(a rank was lost or hung\): back into the queue$')
        self.expect_end(job, run, restarts=1)

    def ranks(self):
        """Pids of the job's ranks, which srun started, on either host."""
        found = []
        for name in os.listdir('/proc'):
            try:
                if name.isdigit() and os.path.realpath(os.readlink('/proc/%s/exe' % name)) == os.path.realpath(PROGRAM):
                    found.append(int(name))
            except OSError:
                continue
        return found

    @contextlib.contextmanager
    def held(self, run, step):
        """At `step`, or a few later, where the job stays meanwhile, however slow this process is: a rank is stopped. Gives its pid."""
        rank = max(wait_until(lambda: len(self.ranks()) == RANKS and self.ranks(), 'the ranks'))
        self.until(lambda: len(run.metrics()) >= step, 'step %d' % step)
        os.kill(rank, signal.SIGSTOP)
        try:
            yield rank
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGCONT)

    def test_a_lost_node_sends_the_job_back_into_the_queue(self):
        job, run = self.submitted()
        with self.held(run, 25):
            self.cluster.hosts.beta.kill()
        self.until(lambda: self.cluster.state(job).get('Restarts') == '1', 'Slurm to give up the node')
        self.assertLess(run.steps()[-1], STEPS)
        self.cluster.hosts.start_beta()
        self.cluster.start_node(self.cluster.hosts.beta)
        self.expect_end(job, run, restarts=1)


if __name__ == '__main__':
    two_hosts.enter()
    unittest.main(verbosity=2)
