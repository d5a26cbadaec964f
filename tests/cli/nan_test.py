"""A value that is not a number: the update is skipped on every rank, its source is named, and training goes on."""
import os
import unittest

from harness import BAD_CONFIG, OK, CliTest, millrace, program


class NotANumber(CliTest):

    def train(self, run_name, fault, ranks=2, **sections):
        config, run = self.config(run_name + '.json', run=run_name, **sections)
        outcome = self.expect(millrace('train', config, ranks=ranks, env={'MILLRACE_INJECT': fault} if fault else None), OK)
        return outcome, run

    def test_in_the_loss_of_one_rank(self):
        outcome, run = self.train('loss', '3:1:loss')
        self.expect_line(outcome.err, r'^millrace: warning: step 3: non-finite loss on rank 1; the update was skipped on all ranks \(1 skipped so far\)$')
        self.assertEqual(self.status_steps(outcome.out), [1, 2, 3, 4, 5, 6])
        lines = run.metrics()
        self.assertEqual([line['skipped'] for line in lines], [0, 0, 1, 1, 1, 1])
        self.assertIsNone(lines[2]['loss'])  # JSON has no NaN
        self.assertEqual(lines[2]['loss_bits'], '0x7fc00000')
        self.assertEqual(lines[2]['offender'], 'loss on rank 1')
        self.assertEqual([line['step'] for line in lines if 'offender' in line], [3])

    def test_in_the_gradient_of_one_unit_on_one_rank(self):
        outcome, run = self.train('unit', '2:1:unit=h.1')
        self.expect_line(outcome.err, r'^millrace: warning: step 2: non-finite gradient of unit h\.1 on rank 1; the update was skipped on all ranks')
        lines = run.metrics()
        self.assertEqual(lines[1]['offender'], 'gradient of unit h.1 on rank 1')
        self.assertEqual([line['skipped'] for line in lines], [0, 1, 1, 1, 1, 1])
        # The forward pass was sound, and so is everything after the skipped update.
        self.assertTrue(all(line['loss'] is not None for line in lines))
        for unit, rank in (('embed', 0), ('head', 1)):
            outcome, run = self.train(unit, '4:%d:unit=%s' % (rank, unit))
            self.expect_line(outcome.err, r'step 4: non-finite gradient of unit %s on rank %d; ' % (unit, rank))

    def test_a_model_that_has_diverged_is_trained_and_saved_without_a_sample(self):
        config, run = self.config('diverged.json', run='diverged', model={'init_std': 10},
                                  optimizer={'lr': 1000, 'clip': 0, 'schedule': {'kind': 'constant', 'warmup': 0, 'min_lr': 0}})
        outcome = self.expect(millrace('train', config, ranks=2), OK)
        self.assertIsNone(run.metrics()[-1]['loss'])
        self.expect_line(outcome.out, '^trained steps 1 to 6: ')
        self.expect_line(outcome.out, '^no sample: a logit of the token that follows 0 drawn ones is not finite$')
        self.assertTrue(os.path.isdir(run.checkpoint(6)))

    def test_the_skipped_update_changes_nothing(self):
        # A fault in the last step leaves the state of the step before it.
        constant = {'schedule': {'kind': 'constant', 'warmup': 0, 'min_lr': 0}}
        _, sound = self.train('sound', None, optimizer=constant, train={'steps': 4})
        _, faulty = self.train('faulty', '5:0:loss', optimizer=constant, train={'steps': 5})
        self.assertEqual(faulty.loss_bits()[:4], sound.loss_bits())
        self.assertEqual(faulty.hashes(), sound.hashes())
        # Data advance and the optimizer's count does not: with the same steps and no fault the state is another.
        _, five = self.train('five', None, optimizer=constant, train={'steps': 5})
        self.assertNotEqual(five.hashes(), faulty.hashes())

    def test_skipped_updates_survive_a_restart(self):
        config, run = self.config(train={'steps': 4})
        self.expect(millrace('train', config, ranks=2, env={'MILLRACE_INJECT': '2:0:loss,3:1:unit=h.0'}), OK)
        outcome = self.expect(millrace('train', config, '--set', 'train.steps=6', ranks=2), OK)
        self.assertEqual([line['skipped'] for line in run.metrics()], [0, 1, 2, 2, 2, 2])
        self.assertEqual(outcome.err, '')
        self.expect_line(self.expect(program('inspect', run.checkpoint(6)), OK).out, 'updates applied 4, skipped 2')

    def test_a_fault_that_cannot_be_is_refused(self):
        config, run = self.config()
        for fault, sentence in (('', 'is set and empty'), ('3', 'neither STEP:RANK:loss nor'), ('0:0:loss', 'with STEP from 1'),
                                ('3:-1:loss', 'RANK from 0'), ('3:0:los', 'neither'), ('3:0:unit=', 'neither'), ('3x:0:loss', 'neither'),
                                ('3:0:loss,,', 'neither'), ('3:2:loss', 'there are 2 ranks'),
                                ('3:0:unit=h.2', r'no such unit; there are embed, h\.0, h\.1, head')):
            with self.subTest(fault):
                outcome = self.expect(millrace('train', config, ranks=2, env={'MILLRACE_INJECT': fault}), BAD_CONFIG)
                self.expect_line(outcome.err, sentence)
                self.assertEqual(run.metrics(), [])


if __name__ == '__main__':
    unittest.main(verbosity=2)
