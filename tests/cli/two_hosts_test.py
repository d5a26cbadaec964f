"""One job on two hosts: the bits of one host, and what becomes of it when a host is lost. two_hosts.py makes the hosts."""
import json
import os
import time
import unittest

import two_hosts
from harness import HUNG, LAUNCHER, OK, PROGRAM, RANK_LOST, CliTest, Job, environment, holding, millrace, rank_pids, wait_until

RANKS, STEPS = 4, 60


class TwoHosts(CliTest):

    def setUp(self):
        super().setUp()
        self.hosts = two_hosts.TwoHosts(self.folder)
        self.addCleanup(self.hosts.end)

    def configs(self, **sections):
        """A run for both hosts, and its twin: the same world on one host, trained once, never stopped."""
        sections.setdefault('train', {}).update(steps=STEPS, micro_batch=4, accumulate=2)
        sections.setdefault('model', {}).update(seq_len=64)
        sections.setdefault('checkpoint', {}).update(every=10)
        sections.setdefault('execution', {}).update(watchdog_s=300)  # a held run is no hang
        config, run = self.config(**sections)
        cls = type(self)
        if not hasattr(cls, 'twin'):
            twin_config, cls.twin = self.config(name='twin.json', run='twin', **sections)
            self.expect(millrace('train', twin_config, ranks=RANKS), OK)
            cls.twin.losses, cls.twin.last = cls.twin.loss_bits(), cls.twin.hashes()
        return config, run

    def started(self, *words, env=None):
        """Words for a shell of alpha. Variables of `env` reach the ranks there."""
        return Job(self.hosts.alpha.inside(*words), environment(dict(self.hosts.environment(), **(env or {}))))

    def train(self, config, *overrides, env=None):
        return self.started(LAUNCHER, '-n', RANKS, '--hostfile', self.hosts.hostfile(RANKS // 2), 'train', config, *overrides, env=env)

    def expect_same(self, run):
        self.assertEqual(run.steps(), list(range(1, STEPS + 1)))
        self.assertEqual(run.loss_bits(), self.twin.losses)
        self.assertEqual(run.hashes(), self.twin.last)

    def expect_lost(self, job, seconds):
        began = time.monotonic()
        outcome = self.expect(job.end(90), RANK_LOST)
        self.assertLess(time.monotonic() - began, seconds, outcome)
        self.expect_line(outcome.err, '^millrace: host beta was lost')
        wait_until(lambda: not rank_pids(self.folder), 'the end of all ranks', timeout=60)

    def test_two_hosts_have_the_bits_of_one_and_speak_over_the_cable(self):
        config, run = self.configs()
        before = [host.sent_bytes() for host in (self.hosts.alpha, self.hosts.beta)]
        self.expect(self.train(config).end(), OK)
        self.expect_same(run)
        # Each step gathers the weights for forward and again for backward, and reduces gradients: each host needs the other's half three
        # times, for each of its ranks.
        weights = sum(os.path.getsize(run.checkpoint(STEPS, 'rank_%05d.safetensors' % r)) for r in range(RANKS)) / 3  # and two moments
        for host, sent in zip((self.hosts.alpha, self.hosts.beta), before):
            self.assertGreater(host.sent_bytes() - sent, 3 * weights * STEPS, host.name)

    def test_a_killed_host_ends_the_job_with_72_and_it_resumes(self):
        config, run = self.configs()
        job = self.train(config, env=holding(27))
        with self.held(job, run, 27):
            self.hosts.beta.kill()
        self.expect_lost(job, seconds=15)
        self.assertLess(run.steps()[-1], STEPS)
        self.hosts.start_beta()
        outcome = self.expect(self.train(config).end(), OK)
        self.expect_line(outcome.out, '^resuming after step ')
        self.expect_same(run)

    def test_a_host_that_falls_silent_is_lost_after_15_s(self):
        config, run = self.configs()
        job = self.train(config, env=holding(27))
        with self.held(job, run, 27):
            self.hosts.beta.cut_off()
        self.expect_lost(job, seconds=60)
        self.hosts.beta.kill()
        self.hosts.start_beta()
        self.expect(self.train(config).end(), OK)
        self.expect_same(run)

    def test_an_mpirun_that_waits_for_a_silent_host_does_not_hold_up_the_end(self):
        config, run = self.configs()
        job = self.train(config, '--set', 'execution.watchdog_s=2', '--set', 'train.steps=100000')
        wait_until(lambda: len(run.metrics()) >= 25, 'step 25', job=job)
        self.hosts.beta.cut_off()
        outcome = self.expect(job.end(90), HUNG)
        self.expect_line(outcome.err, r'^millrace: rank 0: no progress for 2 s')
        self.expect_line(outcome.err, '^millrace: no rank is left on this host, but mpirun waited 15 s for another one')
        wait_until(lambda: not rank_pids(self.folder), 'the end of all ranks', timeout=60)

    def test_ranks_do_not_outlive_the_host_of_mpirun(self):
        config, run = self.configs()
        job = self.train(config, env=holding(27))
        with self.held(job, run, 27):
            self.hosts.alpha.kill()
        job.end()
        wait_until(lambda: not rank_pids(self.folder), 'the end of all ranks', timeout=60)
        self.hosts.beta.kill()
        self.hosts.start()
        self.expect(self.train(config).end(), OK)
        self.expect_same(run)

    def test_a_supervisor_goes_on_when_the_host_is_back(self):
        config, run = self.configs()
        mpirun = 'mpirun -n %d --hostfile %s --oversubscribe --bind-to none --mca mpi_yield_when_idle 1' % (
            RANKS, self.hosts.hostfile(RANKS // 2))
        job = self.started(PROGRAM, 'launch', '--mpirun', mpirun, '--', 'train', config, env=holding(27))
        with self.held(job, run, 27):
            self.hosts.beta.kill()
            self.hosts.start_beta()
        outcome = self.expect(self.ended(job), OK)
        self.expect_line(outcome.err, r'^millrace launch: host beta was lost after step \d+; restart 1 of')
        self.expect_same(run)
        with open(run.file('restarts.jsonl')) as f:
            first = json.loads(f.readline())
        self.assertEqual((first['event'], first['reason']), ('failed', 'host beta was lost'))


if __name__ == '__main__':
    two_hosts.enter()
    unittest.main(verbosity=2)
