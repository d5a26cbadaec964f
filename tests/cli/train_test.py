"""A run from its first step to its last, and what it leaves."""
import contextlib
import json
import math
import os
import re
import shutil
import signal
import unittest

from harness import BAD_CONFIG, OK, RANK_LOST, CliTest, files_of, float32_bits, millrace, program, rank_pids, start, wait_until

METRIC_KEYS = ['step', 'loss', 'loss_bits', 'grad_norm', 'lr', 'tokens', 'step_ms', 'enqueue_us', 'tokens_per_s', 'mfu', 'peak_bytes',
               'skipped']
SAVE_KEYS = ['save_stall_ms', 'saved_step', 'save_ms']  # of a line after a save; the last two when it is on disk
COUNTERS = {'bytes_concatenated', 'bytes_cast', 'bytes_copied', 'bytes_gathered', 'bytes_reduced', 'bytes_all_reduced', 'bytes_exchanged',
            'gathers', 'reduces', 'all_reduces', 'all_to_alls', 'graph_launches'}


class Train(CliTest):

    def test_metrics_have_a_line_per_step_with_the_right_values(self):
        config, run = self.config(train={'eval_every': 4})
        outcome = self.expect(millrace('train', config, ranks=2), OK)
        lines = run.metrics()
        self.assertEqual([line['step'] for line in lines], [1, 2, 3, 4, 5, 6])
        for line in lines:
            step = line['step']
            evaluated = step in (4, 6)
            self.assertEqual([key for key in line if key not in SAVE_KEYS],
                             METRIC_KEYS + (['eval_loss', 'eval_loss_bits'] if evaluated else []))
            self.assertEqual('save_stall_ms' in line, step in (3, 5))  # saved after steps 2 and 4
            self.assertEqual('saved_step' in line, 'save_ms' in line)
            self.assertEqual(line['loss_bits'], float32_bits(line['loss']))
            if evaluated:
                self.assertEqual(line['eval_loss_bits'], float32_bits(line['eval_loss']))
            # Two warm-up steps to 1e-2, then half a cosine to 1e-3 over the remaining four.
            lr = 1e-2 * step / 2 if step <= 2 else 1e-3 + 9e-3 * (1 + math.cos(math.pi * (step - 3) / 4)) / 2
            self.assertAlmostEqual(line['lr'], lr, delta=1e-12)
            self.assertEqual(line['tokens'], step * 2 * 2 * 2 * 32)  # ranks * micro_batch * accumulate * seq_len
            self.assertAlmostEqual(line['tokens_per_s'] * line['step_ms'] / 1e3, 256, delta=1e-6)
            self.assertGreater(line['grad_norm'], 0)
            self.assertGreater(line['enqueue_us'], 0)
            self.assertLessEqual(line['enqueue_us'], line['step_ms'] * 1e3)
            self.assertGreater(line['mfu'], 0)
            self.assertGreater(line['peak_bytes'], 1 << 20)
            self.assertEqual(line['skipped'], 0)
        # 256 bytes, untrained: close to the entropy of a uniform guess; then it learns.
        self.assertAlmostEqual(lines[0]['loss'], math.log(256), delta=0.1)
        self.assertLess(lines[-1]['loss'], lines[0]['loss'] - 0.5)
        self.assertEqual(self.status_steps(outcome.out), [1, 2, 3, 4, 5, 6], outcome)
        self.expect_line(outcome.out, r'^trained steps 1 to 6: training loss \d.* -> \d.*, held-out loss \d.* -> \d')
        self.expect_line(outcome.out, '^sample:$')
        self.assertEqual(outcome.err, '')

    def test_what_a_data_rank_is_is_said_by_config_show_by_the_plan_and_at_the_start(self):
        for key, pair in (('tensor', '2 ranks (tensor 2)'), ('context', '2 ranks (context 2)')):
            config, run = self.config(run=key, parallel={key: 2}, train={'steps': 2})
            words = re.escape('2 ranks: 1 data rank of ' + pair)
            self.expect_line(self.expect(program('config', 'show', config, '--world', '2'), OK).out, '^note: %s$' % words)
            self.expect_line(self.expect(program('plan', config, '--world', '2'), OK).out, r'^  data ranks +1 of %s each, ' % re.escape(pair))
            outcome = self.expect(millrace('train', config, ranks=2), OK)
            self.expect_line(outcome.out, r'^training [0-9.]+k parameters on %s; ' % words)
            # micro_batch counts the sequences of a data rank: two ranks read two sequences twice.
            self.assertEqual([line['tokens'] for line in run.metrics()], [2 * 2 * 32, 2 * 2 * 2 * 32])

    def test_what_a_way_of_executing_means_is_said_by_the_plan_and_at_the_start(self):
        config, _ = self.config(train={'steps': 2})
        joins, walks = 'execution.graph=microbatch joins all streams at each graph\'s end', 'execution.checked walks op by op; execution.graph is not used'
        for assignment, note in (('execution.graph=microbatch', joins), ('execution.checked=true', walks), ('run.log_level=info', '')):
            sets = ['--set', assignment]
            for verb in (['plan', config, '--world', '1'], ['train', config, '--set', 'checkpoint.resume=never']):
                outcome = self.expect(millrace(*verb, *sets), OK)
                for said in ('joins all streams', 'walks op by op'):
                    self.assertEqual(said in outcome.out, said in note, outcome)
                self.assertIn(note, outcome.out)

    def test_checked_execution_over_a_file_that_asks_for_graphs_is_a_note(self):
        config, _ = self.config(train={'steps': 2}, execution={'graph': 'microbatch'})
        checked = ['--set', 'execution.checked=true']
        note = (r'^millrace: note: execution\.graph = "microbatch" \(%s:1:\d+\), execution\.checked = true \(--set execution\.checked=true\): '
                r'checked execution walks op by op, without graphs, so execution\.graph has no effect$' % config)
        for verb in (['plan', config, '--world', '1'], ['train', config]):
            outcome = self.expect(millrace(*verb, *checked), OK)
            self.expect_line(outcome.err, note)
            self.assertNotIn('joins all streams', outcome.out)
            refused = self.expect(millrace(*verb, *checked, '--set', 'execution.graph=off'), BAD_CONFIG)
            self.expect_line(refused.err, r'execution\.graph = "off" .*so execution\.graph has no effect; leave it out')

    def test_a_killed_call_leaves_no_summary_of_the_call_before(self):
        config, run = self.config(train={'steps': 4}, checkpoint={'every': 4})
        self.expect(millrace('train', config), OK)
        self.assertEqual(run.summary()['last_step'], 4)
        job = start('train', config, '--set', 'train.steps=100000', '--set', 'checkpoint.every=0', ranks=2)
        wait_until(lambda: len(run.metrics()) >= 6, 'step 6', job=job)
        os.kill(rank_pids(self.folder)[0], signal.SIGKILL)
        self.expect(job.end(), RANK_LOST)
        self.assertFalse(os.path.exists(run.file('summary.json')))

    def test_summary_has_hashes_counters_and_the_prediction_beside_what_was_measured(self):
        options = {
            'defaults': {},
            'bf16 wire, casts and copies': {'precision': {'compute': 'bf16', 'grad_wire': 'bf16'},
                                            'sharding': {'downcast': 'per_gather', 'grad_sync': 'last', 'grad_concat': 'last'}},
            'replicas': {'parallel': {'replicate': 2}, 'execution': {'graph': 'microbatch'}},
            'eager': {'execution': {'graph': 'off'}, 'memory': {'allocator': 'max_pool'}, 'sharding': {'grad_concat': 'every'}},
        }
        seen = {}
        for name, sections in options.items():
            with self.subTest(name):
                config, run = self.config(run=name.replace(' ', '_'), train={'steps': 3}, **sections)
                self.expect(millrace('train', config, ranks=2), OK)
                summary = run.summary()
                for key, digits in (('param_hash', 32), ('optimizer_hash', 32), ('plan_hash', 16)):
                    self.assertRegex(summary[key], '^[0-9a-f]{%d}$' % digits)
                self.assertEqual(set(summary['counters']), COUNTERS)
                self.assertEqual((summary['first_step'], summary['last_step'], summary['world']), (0, 3, 2))
                predicted, measured = summary['predicted'], summary['measured']
                self.assertEqual(measured['counters'], summary['counters'])  # all of the run was in one call
                self.assertEqual(predicted['counters'], measured['counters'])
                self.assertEqual(predicted['wire_bytes'], measured['wire_bytes'])
                self.assertEqual(predicted['arena_bytes'], measured['arena_bytes'])
                self.assertLessEqual(predicted['lower_bound_bytes'], predicted['arena_bytes'])
                self.assertGreater(predicted['step_ms'], 0)
                self.assertGreater(measured['step_ms'], 0)
                # What stands in memory is the arena and little else.
                self.assertLess(summary['peak_bytes'], summary['resident_before_arena_bytes'] + measured['arena_bytes'] + (16 << 20))
                seen[name] = summary
        counters = {name: summary['counters'] for name, summary in seen.items()}
        # A prediction of nothing but zeros would be equal too: each option moves what it governs.
        self.assertEqual(counters['defaults']['bytes_concatenated'], 0)
        self.assertGreater(counters['eager']['bytes_concatenated'], 0)
        self.assertEqual(counters['defaults']['bytes_cast'], 0)
        self.assertGreater(counters['bf16 wire, casts and copies']['bytes_cast'], 0)
        self.assertEqual(counters['defaults']['bytes_all_reduced'], 0)
        self.assertGreater(counters['replicas']['bytes_all_reduced'], 0)
        self.assertEqual(counters['defaults']['graph_launches'], 3)
        self.assertEqual(counters['eager']['graph_launches'], 0)
        self.assertGreater(counters['replicas']['graph_launches'], 3)
        self.assertEqual(len({summary['plan_hash'] for summary in seen.values()}), 4)
        # Where the bytes are moved differently the model is the same; bf16 is another.
        self.assertEqual(seen['defaults']['param_hash'], seen['eager']['param_hash'])
        self.assertNotEqual(seen['defaults']['param_hash'], seen['bf16 wire, casts and copies']['param_hash'])

    def test_a_traced_step_leaves_a_timeline_and_the_bits_as_they_are(self):
        import json
        runs = {}
        for name, arguments in (('plain', ()), ('traced', ('--trace-step', '3')), ('microbatch', ('--trace-step', '3', '--set', 'execution.graph=microbatch'))):
            config, runs[name] = self.config(run=name, train={'steps': 5, 'accumulate': 2})
            self.expect(millrace('train', config, *arguments, ranks=2), OK)
        traced = runs['traced']
        for key in ('param_hash', 'optimizer_hash'):
            self.assertEqual(traced.summary()[key], runs['plain'].summary()[key])
        self.assertEqual([line['loss_bits'] for line in traced.metrics()], [line['loss_bits'] for line in runs['plain'].metrics()])
        for run in runs.values():  # the traced step is no replay
            self.assertEqual(run.summary()['predicted']['counters'], run.summary()['measured']['counters'])
        self.assertEqual(traced.summary()['counters']['graph_launches'], runs['plain'].summary()['counters']['graph_launches'] - 1)
        self.assertFalse(os.path.exists(runs['plain'].file('timeline.json')))
        with open(traced.file('timeline.json')) as file:
            trace = json.load(file)
        self.assertEqual((trace['otherData']['step'], trace['otherData']['trace']['step'], trace['otherData']['ranks']), (3, 'eager', 2))
        self.assertEqual(trace['otherData']['plan_hash'], traced.summary()['plan_hash'])
        plan = json.loads(self.expect(millrace('plan', config, '--world', '2', '--json'), OK).out)
        for rank in (0, 1):
            spans = [e for e in trace['traceEvents'] if e['ph'] == 'X' and e['pid'] == rank]
            counts = {kind: sum(e['cat'] == kind for e in spans) for kind in {e['cat'] for e in spans}}
            self.assertEqual(counts, {kind['kind']: kind['count'] for kind in plan['roofline']['by_kind']})

    def test_a_timeline_that_cannot_be_written_is_a_warning_and_one_of_a_checked_run_is_refused(self):
        config, run = self.config(train={'steps': 3})
        os.makedirs(run.file('timeline.json/in_the_way'))
        outcome = self.expect(millrace('train', config, '--trace-step', '2'), OK)
        self.expect_line(outcome.err, 'warning: no timeline of step 2: .*timeline.json')
        self.assertEqual(len(run.metrics()), 3)
        for step in ('2', '9'):  # done before the resume, and after the last one
            outcome = self.expect(millrace('train', config, '--trace-step', step, '--set', 'train.steps=5', '--set', 'checkpoint.keep=9'), OK)
            self.expect_line(outcome.err, 'warning: no timeline: this call trains steps [45] to 5, and one of step %s takes steps %s to %s$' % (step, step, step))
            shutil.rmtree(run.file('checkpoints/step_00000005'))
        outcome = self.expect(millrace('train', config, '--trace-step', '2', '--set', 'execution.checked=true'), BAD_CONFIG)
        self.assertIn('--trace-step', outcome.err)

    def test_what_plan_says_is_what_the_run_measures(self):
        import json
        config, run = self.config(train={'steps': 3})
        self.expect(millrace('train', config, ranks=2), OK)
        plan = json.loads(self.expect(program('plan', config, '--world', 2, '--json', '--machine', 'cpu'), OK).out)
        summary = run.summary()
        self.assertEqual(plan['plan']['hash'], summary['plan_hash'])
        self.assertEqual(plan['memory']['run_arena_bytes'], summary['measured']['arena_bytes'])
        self.assertEqual(plan['memory']['lower_bound_bytes'], summary['predicted']['lower_bound_bytes'])

    def test_recomputing_for_a_budget_changes_no_bit_and_is_planned_alike(self):
        import json
        plain, plain_run = self.config('plain.json', run='plain')
        def plan(config, *options):
            return json.loads(self.expect(program('plan', config, '--world', 2, '--json', '--machine', 'cpu', *options), OK).out)
        most = plan(plain, '--set', 'memory.recompute=norms')['memory']['run_arena_bytes']
        free = plan(plain)['memory']['run_arena_bytes']
        self.assertLess(most, free)
        budget = (free - (free - most) // 3) / 2 ** 30
        tight, tight_run = self.config('tight.json', run='tight', memory={'recompute': 'auto', 'budget_gib': budget})
        planned = plan(tight)
        self.assertTrue(planned['recompute']['auto'])
        self.assertGreater(planned['recompute']['ops'], 0)
        self.expect(millrace('train', plain, ranks=2), OK)
        self.expect(millrace('train', tight, ranks=2), OK)
        self.assertEqual(plain_run.loss_bits(), tight_run.loss_bits())
        self.assertEqual(plain_run.hashes(), tight_run.hashes())
        self.assertEqual(planned['plan']['hash'], tight_run.summary()['plan_hash'])
        self.assertLessEqual(tight_run.summary()['measured']['arena_bytes'], budget * 2 ** 30)
        self.assertLess(tight_run.summary()['measured']['arena_bytes'], plain_run.summary()['measured']['arena_bytes'])

    def test_evaluation_does_not_change_the_training(self):
        plain, plain_run = self.config('plain.json', run='plain')
        watched, watched_run = self.config('watched.json', run='watched', train={'eval_every': 1})
        self.expect(millrace('train', plain), OK)
        self.expect(millrace('train', watched), OK)
        self.assertEqual(plain_run.loss_bits(), watched_run.loss_bits())
        self.assertEqual(plain_run.hashes(), watched_run.hashes())

    def test_a_complete_run_says_so_and_changes_nothing(self):
        config, run = self.config()
        self.expect(millrace('train', config, ranks=2), OK)
        before = files_of(run.path)
        for ranks in (2, 1):
            outcome = self.expect(millrace('train', config, ranks=ranks), OK)
            self.expect_line(outcome.out, '%s is complete: 6 of 6 steps' % run.path)
            self.assertEqual(self.status_steps(outcome.out), [])
            self.assertNotIn('resuming', outcome.out)
            self.assertEqual(files_of(run.path), before)

    # Of a summary that is written later: what only the call that trained knew.
    LOST = ('eval_before', 'seconds', 'resident_before_arena_bytes', 'saves')

    def expect_rebuilt(self, summary, original, lost):
        """`summary` says what `original` said, but for `lost`, and memory that the process took after its last step."""
        self.assertEqual(list(summary), list(original) + ['rebuilt_from'])
        self.assertEqual(summary['rebuilt_from'], 'step_00000006')
        for key in original:
            if key in lost:
                self.assertIsNone(summary[key], key)
            elif key == 'peak_bytes':
                self.assertTrue(0 < summary[key] <= original[key], key)
            else:
                self.assertEqual(summary[key], original[key], key)

    def test_a_complete_run_without_its_summary_gets_it(self):
        for name, sections in (('eval', {'train': {'eval_every': 4}}), ('plain', {'execution': {'graph': 'microbatch'}})):
            with self.subTest(name):
                config, run = self.config(run=name, **sections)
                self.expect(millrace('train', config, ranks=2), OK)
                original, before = run.summary(), files_of(run.path)
                # As good as none: an empty file, or half of one.
                for text in ('', json.dumps(original)[:40]):
                    with open(run.file('summary.json'), 'w') as f:
                        f.write(text)
                    self.expect(millrace('train', config, ranks=2), OK)
                    self.expect_rebuilt(run.summary(), original, self.LOST)
                os.remove(run.file('summary.json'))
                # Another world and another plan have not trained it.
                for sets, ranks in (((), 1), (('--set', 'memory.prefetch=0'), 2)):
                    outcome = self.expect(millrace('train', config, *sets, ranks=ranks), OK)
                    self.expect_line(outcome.err, 'summary.json is missing and cannot be written by this call: ')
                    self.assertFalse(os.path.exists(run.file('summary.json')))
                outcome = self.expect(millrace('train', config, ranks=2), OK)
                self.expect_line(outcome.out, 'is complete: 6 of 6 steps')
                self.expect_line(outcome.err, 'summary.json was missing: it is written from step_00000006 and metrics.jsonl')
                self.expect_rebuilt(run.summary(), original, self.LOST)
                after = files_of(run.path)
                del before['summary.json'], after['summary.json']
                self.assertEqual(after, before)

    def test_a_summary_that_lacks_losses_says_so(self):
        config, run = self.config()
        self.expect(millrace('train', config), OK)
        with open(run.file('metrics.jsonl')) as f:
            lines = f.readlines()
        for kept, absent, key in ((lines[:3], 6, 'last_loss'), (lines[1:], 1, 'first_loss'), (lines, None, None)):
            with self.subTest(absent=absent):
                os.remove(run.file('summary.json'))
                with open(run.file('metrics.jsonl'), 'w') as f:
                    f.writelines(kept)
                outcome = self.expect(millrace('train', config), OK)
                self.expect_line(outcome.err, r'summary\.json was missing: .*%s$' % (
                    r'; losses are missing, too: metrics\.jsonl has no line of step %d' % absent if absent else 'killed call knew'))
                if key:
                    self.assertIsNone(run.summary()[key])

    def test_lines_that_cannot_be_read_keep_no_summary_from_being_rebuilt(self):
        config, run = self.config(train={'eval_every': 4})
        self.expect(millrace('train', config), OK)
        original = run.summary()
        with open(run.file('metrics.jsonl'), 'rb') as f:
            lines = f.readlines()
        others = lambda text: r'; of metrics\.jsonl %s cannot be read: median and peak are those of the others' % text
        absent = '; losses are missing, too: metrics\.jsonl has no line of step %s'
        no_loss = re.sub(rb'"loss":[^,]*,"loss_bits":[^,]*,', b'', lines[3])
        for name, damage, numbers, said, lost in (
                ('half of a line', {3: lines[2][:40] + b'\n'}, [3], others('line 3'), ()),
                ('other bytes', {2: b'\xff\x00\n', 5: b'[]\n'}, [2, 5], others('lines 2, 5'), ()),
                ('no loss', {4: no_loss}, [4], others('line 4'), ()),
                ('the first', {1: b'{}\n'}, [1], others('line 1') + absent % '1', ('first_loss',)),
                ('the last', {6: b'null\n'}, [6], others('line 6') + absent % '6', ('last_loss', 'last_loss_bits', 'eval_after')),
                ('more lines than are worth a list', {1: b'\n' * 13 + lines[0]}, list(range(1, 14)),
                 others('lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more'), ())):
            with self.subTest(name):
                os.remove(run.file('summary.json'))
                with open(run.file('metrics.jsonl'), 'wb') as f:
                    f.writelines(damage.get(number, line) for number, line in enumerate(lines, 1))
                before = files_of(run.path)
                outcome = self.expect(millrace('train', config), OK)
                self.expect_line(outcome.out, 'is complete: 6 of 6 steps')
                self.expect_line(outcome.err, r'summary\.json was missing: .*killed call knew%s$' % said)
                summary, after = run.summary(), files_of(run.path)
                self.assertEqual(summary.pop('unreadable_lines'), numbers)
                del after['summary.json']
                self.assertEqual(after, before)  # the damage is left as it is
                summary['measured']['step_ms'] = original['measured']['step_ms']  # a median of fewer
                summary['measured']['tokens_per_s'] = original['measured']['tokens_per_s']
                self.expect_rebuilt(summary, original, self.LOST + lost)

    def test_killed_between_the_last_checkpoint_and_the_summary(self):
        whole_config, whole = self.config('whole.json', run='whole')
        self.expect(millrace('train', whole_config, ranks=2), OK)

        def attempt(number):
            config, run = self.config(run='run%d' % number)
            # A disk that takes its time: once the last checkpoint has its name, its folder is still to be synced.
            job = start('train', config, '--set', 'checkpoint.every=0', ranks=2, env={'MILLRACE_INJECT_DISK': '0:slow=700'})
            wait_until(run.metrics, 'the first step', job=job)
            victim = rank_pids(self.folder)[0]  # looked for now: it may take longer than the moment lasts
            wait_until(lambda: os.path.isdir(run.checkpoint(6)), 'the last checkpoint', job=job)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            return (config, run, job.end()), os.path.exists(run.file('summary.json'))

        config, run, outcome = self.unless_late(attempt)
        self.expect(outcome, RANK_LOST)
        outcome = self.expect(millrace('train', config, '--set', 'checkpoint.every=0', ranks=2), OK)
        self.expect_line(outcome.out, 'is complete: 6 of 6 steps')
        self.assertEqual(self.status_steps(outcome.out), [])
        self.assertEqual(run.hashes(), whole.hashes())
        for key in ('counters', 'predicted', 'plan_hash', 'plan_stages', 'first_loss', 'last_loss_bits'):
            self.assertEqual(run.summary()[key], whole.summary()[key], key)

    def test_a_checkpoint_of_an_older_version_is_gone_on_from_bit_for_bit(self):
        # tests/cli/old_checkpoint: step 4 of this configuration, saved by the program of 2026-11-22, before checkpoints kept tuning or names of counters.
        # Its bits are those of one of OpenBLAS's sets of kernels, and which one OpenBLAS takes depends on the processor.
        with open('/proc/cpuinfo') as f:
            avx512 = {'avx512f', 'avx512bw', 'avx512dq', 'avx512vl', 'avx512cd'} <= set(f.read().split())
        kernels = {'OPENBLAS_CORETYPE': 'SkylakeX'} if avx512 else {}
        sections = {'model': {'layers': 1, 'd_model': 8, 'ffn': 8, 'seq_len': 8}, 'train': {'steps': 8},
                    'optimizer': {'schedule': {'kind': 'constant', 'warmup': 0, 'min_lr': 0}}, 'checkpoint': {'every': 0}}
        whole_config, whole = self.config('whole.json', run='whole', **sections)
        self.expect(millrace('train', whole_config, env=kernels), OK)
        config, run = self.config(**sections)
        os.makedirs(run.file('checkpoints'))
        shutil.copytree('tests/cli/old_checkpoint', run.checkpoint(4))
        outcome = self.expect(millrace('train', config, env=kernels), OK)
        self.assertEqual(self.status_steps(outcome.out), [5, 6, 7, 8])
        self.assertEqual(outcome.err, '')
        if avx512:
            self.assertEqual(run.loss_bits(), whole.loss_bits()[4:])
            self.assertEqual(run.hashes(), whole.hashes())
        for ours, theirs in zip(run.metrics(), whole.metrics()[4:]):
            self.assertAlmostEqual(ours['loss'], theirs['loss'], delta=1e-5 * theirs['loss'])
        self.assertEqual(run.summary()['counters'], whole.summary()['counters'])  # saved as a list then, and by name now

    def test_an_incomplete_run_goes_on_and_says_where(self):
        # The schedule depends on the steps asked for; a constant rate does not.
        constant = {'kind': 'constant', 'min_lr': 0}
        whole, whole_run = self.config('whole.json', run='whole', optimizer={'schedule': constant}, train={'steps': 9})
        self.expect(millrace('train', whole, ranks=2), OK)
        config, run = self.config(run='parts', optimizer={'schedule': constant})
        self.expect(millrace('train', config, '--set', 'train.steps=5', ranks=2), OK)
        first = run.summary()
        outcome = self.expect(millrace('train', config, '--set', 'train.steps=9', ranks=2), OK)
        self.expect_line(outcome.out, '^resuming after step 5 from %s$' % run.checkpoint(5))
        self.assertEqual(self.status_steps(outcome.out), [6, 7, 8, 9])
        self.assertEqual(outcome.err, '')
        self.assertEqual(run.steps(), list(range(1, 10)))
        self.assertEqual(run.loss_bits(), whole_run.loss_bits())
        self.assertEqual(run.hashes(), whole_run.hashes())
        # The counters go on, too; those beside the prediction are of the second call.
        summary = run.summary()
        self.assertEqual(summary['counters'], whole_run.summary()['counters'])
        self.assertEqual(summary['predicted']['counters'], summary['measured']['counters'])
        self.assertEqual(summary['counters']['gathers'], first['counters']['gathers'] + summary['measured']['counters']['gathers'])


if __name__ == '__main__':
    unittest.main(verbosity=2)
