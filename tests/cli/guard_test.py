"""Numbers that cannot be trusted, on ranks of their own processes: what the run does, says and leaves. The bits are tests/runtime/run/guard_training_test."""
import json
import shutil
import unittest

from harness import BAD_CHECKPOINT, IO_FAILED, OK, CliTest, millrace, program

STOPPED_BY_GUARD = 73


def read(path):
    with open(path, 'rb') as f:
        return f.read()


class Guards(CliTest):

    def train(self, fault, code, run_name='run', **sections):
        config, run = self.config(run_name + '.json', run=run_name, **sections)
        outcome = self.expect(millrace('train', config, ranks=2, env={'MILLRACE_INJECT': fault} if fault else None), code)
        return outcome, run

    def stopped(self, fault, pattern, **sections):
        """Exit code 73, and the reason once."""
        outcome, run = self.train(fault, STOPPED_BY_GUARD, **sections)
        self.expect_line(outcome.err, r'^millrace: rank 0: ' + pattern + '; the run stops and saves nothing: checkpoints are as they were$')
        self.expect_line(outcome.err, 'saves nothing')
        for name in run.checkpoints():
            self.expect(program('inspect', run.file('checkpoints', name)), OK)
        return run

    def test_a_roll_back_is_told_recorded_and_shown(self):
        outcome, run = self.train('5:1:unit=h.1', OK, train={'steps': 8}, guard={'non_finite': 'roll_back'})
        self.expect_line(outcome.err, r'^millrace: warning: step 5: gradient of unit h\.1 on rank 1: rolled back to step 4; '
                         r'the data of step 5 are left out \(1 of 3 roll-backs\)$')
        self.assertEqual(self.status_steps(outcome.out), [1, 2, 3, 4, 5, 5, 6, 7, 8])
        lines = run.metrics()
        self.assertEqual([line['step'] for line in lines], [1, 2, 3, 4, 5, 6, 7, 8])
        self.assertEqual(lines[4]['rolled_back'], [{'from': 5, 'why': 'gradient of unit h.1 on rank 1'}])
        self.assertEqual([line.get('data_step') for line in lines], [None] * 4 + [6, 7, 8, 9])
        with open(run.file('roll_backs.jsonl')) as f:
            self.assertEqual([(r['from'], r['to']) for r in map(json.loads, f)], [(5, 4)])
        self.expect(program('report', run.path), OK)
        with open(run.file('report.html')) as f:
            page = f.read()
        self.assertIn('<td>5</td><td>4</td><td>gradient of unit h.1 on rank 1</td>', page.replace(' class="n"', ''))
        self.assertIn('rolled back from step 5 to 4: gradient of unit h.1 on rank 1', page)  # at the charts
        # Trained on, the run goes on with the data that follow.
        config, _ = self.config('run.json', train={'steps': 10}, guard={'non_finite': 'roll_back'})
        self.expect(millrace('train', config, ranks=2), OK)
        self.assertEqual([line.get('data_step') for line in run.metrics()[8:]], [10, 11])
        # A log that cannot be read ends the call before it changes a file.
        config, _ = self.config('run.json', train={'steps': 12}, guard={'non_finite': 'roll_back'})
        files = ('roll_backs.jsonl', 'metrics.jsonl', 'summary.json')
        before = {name: read(run.file(name)) for name in files}
        with open(run.file('roll_backs.jsonl'), 'a') as f:
            f.write('no line\n')
        self.expect(millrace('train', config, ranks=2), BAD_CHECKPOINT)
        self.assertEqual([read(run.file(name)) for name in files[1:]], [before[name] for name in files[1:]])
        with open(run.file('roll_backs.jsonl'), 'wb') as f:
            f.write(before['roll_backs.jsonl'])
        # A new run in the folder has nothing to do with it.
        self.expect(millrace('train', config, '--set', 'checkpoint.resume=never', ranks=2), OK)
        self.assertFalse(any('data_step' in line for line in run.metrics()))

    def test_a_step_that_may_not_be_skipped_stops_the_run(self):
        run = self.stopped('5:0:loss', r'step 5: non-finite loss on rank 0; guard\.non_finite is stop', guard={'non_finite': 'stop'})
        self.assertEqual(run.checkpoints(), ['step_00000002', 'step_00000004'])
        self.assertEqual(run.steps(), [1, 2, 3, 4, 5])

    def test_a_save_that_fails_does_not_hide_why_the_run_stops(self):
        def attempt(number):
            config, run = self.config(run='run%d' % number, guard={'non_finite': 'stop'}, checkpoint={'every': 2, 'on_error': 'stop'})
            outcome = millrace('train', config, ranks=2, env={'MILLRACE_INJECT': '3:1:loss', 'MILLRACE_INJECT_DISK': '1:write=3,1:slow=150'})
            # Where step 3 took longer than three writes the save had failed before it.
            return (run, outcome), outcome.code == IO_FAILED

        run, outcome = self.unless_late(attempt)
        self.expect(outcome, STOPPED_BY_GUARD)
        self.expect_line(outcome.err, r'^millrace: warning: step 2: not saved: rank 1: ')
        self.expect_line(outcome.err, r'^millrace: rank 0: step 3: non-finite loss on rank 1; guard\.non_finite is stop; the run stops ')
        self.assertEqual(run.checkpoints(), [])

    def test_a_run_begun_anew_is_not_rolled_back_by_the_one_before(self):
        sections = dict(train={'steps': 5}, checkpoint={'every': 0}, guard={'non_finite': 'roll_back'})
        _, run = self.train('3:1:loss', OK, **sections)
        self.assertEqual([line.get('data_step') for line in run.metrics()], [4, 5, 6, 7, 8])
        shutil.rmtree(run.file('checkpoints'))  # as if it had been killed before its first
        config, _ = self.config('run.json', **sections)
        self.expect(millrace('train', config, '--set', 'checkpoint.resume=never', ranks=2), OK)
        self.assertEqual([line.get('data_step') for line in run.metrics()], [None] * 5)

    def test_corruption_that_no_loss_shows_stops_the_run(self):
        self.stopped('3:1:flip=h.0', r'after step 4: rank 1 and rank 0 are replicas, but their master weights of unit h\.0 differ',
                     parallel={'replicate': 2}, guard={'replicas_every': 2})
        self.stopped('3:1:flip=h.0', r'step 3, run twice from the same state, gave two results: .*, on every rank', run_name='twice',
                     guard={'rerun_every': 3})
        self.stopped('3:1:swap=h.0', r"after step 3: rank 1 has issued other collectives than rank 0 on the communicator 'shard gather': call \d+ is all_gather of unit h\.1 .*, "
                     r'and all_gather of unit h\.0 \(\d+ bytes, op \d+ of step 3\) on rank 0', run_name='order', guard={'order_every': 3})


if __name__ == '__main__':
    unittest.main(verbosity=2)
