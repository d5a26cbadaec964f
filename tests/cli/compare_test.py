"""Two runs side by side: what `compare` says of real ones that differ in a known way."""
import datetime
import json
import os
import re
import shutil
import socket
import subprocess
import time
import unittest

from harness import BAD_CONFIG, BAD_DATA, IO_FAILED, OK, PROGRAM, CliTest, RunDir, millrace, program, truncate

DIFFER = 1
STAGES = ['model_spec', 'layout', 'semantic_program', 'kernel_program', 'memory_plan', 'schedule']
CONSTANT = {'schedule': {'kind': 'constant', 'warmup': 0, 'min_lr': 0}}


class Compare(CliTest):

    def train(self, name, *sets, folder=None, **sections):
        """A run on two ranks in a folder of its own; `folder` goes on with another run's."""
        sections.setdefault('optimizer', CONSTANT)
        config, run = self.config(name + '.json', run=folder or name, **sections)
        words = [word for assignment in sets for word in ('--set', assignment)]
        self.expect(millrace('train', config, *words, ranks=2), OK)
        return run

    def compare(self, a, b, code):
        value = json.loads(self.expect(program('compare', '--json', a.path, b.path), code).out)
        text = self.expect(program('compare', a.path, b.path), code).out
        return value, text

    def stages(self, value):
        return [stage['stage'] for stage in value['plan_stages']]

    def keys(self, value):
        return {key['key']: (key['a'], key['b']) for key in value['config']}

    def test_the_same_configuration_twice_is_the_same_run(self):
        a, b = self.train('a'), self.train('b')
        value, text = self.compare(a, b, OK)
        self.assertTrue(value['same'] and value['same_results'])
        for series in ('loss', 'grad_norm'):
            self.assertEqual(value[series], {'common_steps': 6, 'differing_steps': 0, 'first': None, 'growth': []})
        self.assertEqual((value['config'], value['plan_stages']), ([], []))
        self.assertEqual(value['hashes']['param_hash'], {'a': a.summary()['param_hash'], 'b': b.summary()['param_hash'], 'equal': True})
        self.expect_line(text, r'^The same: all 6 losses and the final hashes are equal\.$')
        self.expect_line(text, r'^plan stages: equal$')
        self.assertLess(len(text.splitlines()), 15)

    def test_another_learning_rate_from_a_step_on(self):
        a = self.train('a')
        self.train('b', 'train.steps=3')
        b = self.train('b', 'optimizer.lr=0.02')
        with open(b.file('config.json')) as f:
            recorded = json.load(f)
        self.assertEqual((recorded['step'], recorded['world'], recorded['backend']), (0, 2, 'cpu'))
        self.assertEqual(recorded['keys']['optimizer.lr']['value'], 0.01)
        self.assertEqual(recorded['keys']['train.steps'], {'value': 3, 'origin': '--set'})
        self.assertEqual(recorded['keys']['model.kv_heads'], {'value': 2, 'origin': 'default'})  # in force; null in the file
        self.assertEqual([call['step'] for call in recorded['resumed']], [3])
        self.assertEqual(set(recorded['resumed'][0]['keys']), {'optimizer.lr', 'train.steps'})
        self.assertEqual(list(recorded['plan_stages']), STAGES)
        self.assertEqual(recorded['resumed'][0]['plan_stages'], b.summary()['plan_stages'])

        value, text = self.compare(a, b, DIFFER)
        # The update after step 4 is the first with the other rate: its loss is step 5's.
        self.assertEqual([p['step'] for p in [value['loss']['first']] + value['loss']['growth']], [5, 6])
        self.assertEqual(value['loss']['differing_steps'], 2)
        self.assertEqual(value['grad_norm']['first']['step'], 5)
        first = value['loss']['first']
        self.assertEqual((first['a_bits'], first['b_bits']), (a.loss_bits()[4], b.loss_bits()[4]))
        # Both are positive: bits are consecutive integers.
        self.assertEqual(first['ulps'], abs(int(first['a_bits'], 16) - int(first['b_bits'], 16)))
        self.assertAlmostEqual(first['difference'], b.metrics()[4]['loss'] - a.metrics()[4]['loss'], delta=1e-6)
        self.assertFalse(value['hashes']['param_hash']['equal'])
        in_a, in_b = self.keys(value)['optimizer.lr']
        self.assertEqual([(v['after_step'], v['value']) for v in in_a], [(0, 0.01)])
        self.assertRegex(in_a[0]['origin'], r'a\.json:\d+$')
        self.assertEqual([(v['after_step'], v['value']) for v in in_b], [(0, 0.01), (3, 0.02)])
        self.assertEqual(in_b[1]['origin'], '--set')
        self.assertEqual(self.stages(value), ['schedule'])
        line = value['plan_stages'][0]['first_difference']
        self.assertIn('lr=0.01', line['a'])
        self.assertIn('lr=0.02', line['b'])
        self.expect_line(text, r'^The losses differ, from step 5 on\.$')
        self.expect_line(text, r'^    A lr=0\.01$')
        self.expect_line(text, r'^ +B 0\.01 \(.*b\.json:\d+\), after step 3 0\.02 \(--set\)$')

    def test_a_stage_that_is_planned_otherwise_now_is_told_by_its_hash_alone(self):
        a, b = self.train('a'), self.train('b', sharding={'reshard': 'never'})
        value, _ = self.compare(a, b, DIFFER)
        self.assertTrue(all(stage['first_difference'] for stage in value['plan_stages']), value['plan_stages'])
        with open(b.file('config.json')) as f:
            recorded = json.load(f)
        recorded['plan_stages']['schedule'] = 'f' * len(recorded['plan_stages']['schedule'])  # as another version had it
        with open(b.file('config.json'), 'w') as f:
            json.dump(recorded, f)
        value, text = self.compare(a, b, DIFFER)
        stages = {stage['stage']: stage['first_difference'] for stage in value['plan_stages']}
        self.assertIsNone(stages['schedule'])
        self.assertIsNotNone(stages['memory_plan'])
        self.expect_line(text, r'^  schedule +by hash$')

    def test_other_data_under_the_same_path_are_named(self):
        a = self.train('a')
        config, b = self.config('b.json', run='b', optimizer=CONSTANT)
        with open(self.path('data.txt'), 'r+') as f:
            text = f.read()
            f.seek(0)
            f.write(text.upper())
        self.expect(millrace('train', config, ranks=2), OK)
        value, text = self.compare(a, b, DIFFER)
        self.assertEqual(value['config'], [])
        self.assertEqual([entry['name'] for entry in value['environment']], ['data fingerprint'])
        self.expect_line(text, '^  data fingerprint  A ')

    def test_environments_are_recorded_and_shown_and_are_no_difference(self):
        a = self.train('a', 'train.steps=3')
        with open(a.file('config.json')) as f:
            first = json.load(f)
        self.train('a')
        with open(a.file('config.json')) as f:
            recorded = json.load(f)
        self.assertEqual({key: value for key, value in recorded.items() if key != 'resumed'},
                         {key: value for key, value in first.items() if key != 'resumed'})
        calls = [{entry['name']: entry['value'] for entry in call['environment']} for call in [recorded] + recorded['resumed']]
        self.assertEqual(len(calls), 2)
        for call in calls:
            self.assertEqual(call['host'], socket.gethostname() + ': ranks 0-1')
            self.assertRegex(call['MPI'], r'^Open MPI v\d+\.\d+')
            self.assertRegex(call['BLAS'], '^OpenBLAS ')
            self.assertRegex(call['program'], r'^[0-9a-f]{16}, g\+\+ \d')
            self.assertIn(os.uname().release, call['kernel'])
            self.assertGreater(int(call['CPUs']), 0)
            self.assertNotIn('NCCL', call)  # on the CPU
            self.assertNotIn('', call.values())
            began = datetime.datetime.strptime(call['started'], '%Y-%m-%dT%H:%M:%SZ').replace(tzinfo=datetime.timezone.utc)
            self.assertLess(abs(began.timestamp() - time.time()), 600)
        with open('/proc/cpuinfo') as f:
            models = [line.split(':', 1)[1].strip() for line in f if line.startswith('model name')]
        self.assertEqual(calls[0].get('device'), models[0] if models else None)
        # Each call's own command.
        self.assertRegex(calls[0]['command'], r'millrace\w* train \S*a\.json --set train\.steps=3$')
        self.assertRegex(calls[1]['command'], r'millrace\w* train \S*a\.json$')

        b = RunDir(self.path('b'))
        shutil.copytree(a.path, b.path)
        value, text = self.compare(a, b, OK)
        self.assertEqual(value['environment'], [])
        self.assertNotIn('environment', text)
        # As on another machine, from the resumed call on.
        for entry in recorded['resumed'][0]['environment']:
            if entry['name'] in ('host', 'started', 'command', 'MPI'):
                entry['value'] = 'other'
        with open(b.file('config.json'), 'w') as f:
            json.dump(recorded, f)
        value, text = self.compare(a, b, OK)
        self.assertTrue(value['same'])
        self.assertEqual(value['config'], [])
        self.assertEqual(value['environment'], [{'name': 'MPI', 'a': [{'after_step': 0, 'value': calls[0]['MPI']}],
                                                 'b': [{'after_step': 0, 'value': calls[0]['MPI']}, {'after_step': 3, 'value': 'other'}]}])
        self.expect_line(text, '^The same: ')
        self.expect_line(text, '^environment: differs$')
        self.expect_line(text, r'^  MPI  A ' + re.escape(calls[0]['MPI']) + '$')
        self.expect_line(text, r'^ +B ' + re.escape(calls[0]['MPI']) + ', after step 3 other$')
        # Files of before there were environments.
        for call in [recorded] + recorded['resumed']:
            del call['environment']
        with open(b.file('config.json'), 'w') as f:
            json.dump(recorded, f)
        value, text = self.compare(a, b, OK)
        self.assertIsNone(value['environment'])
        self.assertEqual(value['config'], [])

    def test_another_seed(self):
        a, b = self.train('a'), self.train('b', train={'seed': 1})
        value, _ = self.compare(a, b, DIFFER)
        self.assertEqual(value['loss']['first']['step'], 1)
        self.assertEqual(value['loss']['differing_steps'], 6)
        self.assertEqual(set(self.keys(value)), {'train.seed'})
        self.assertEqual(self.stages(value), [])  # the plan does not know the seed
        self.assertTrue(value['hashes']['plan_hash']['equal'])

    def test_another_plan_with_the_same_bits(self):
        a, b = self.train('a'), self.train('b', sharding={'reshard': 'never'})
        value, text = self.compare(a, b, DIFFER)
        self.assertTrue(value['same_results'])
        self.assertFalse(value['same'])
        self.assertEqual(value['loss']['differing_steps'], 0)
        self.assertEqual([name for name, h in value['hashes'].items() if not h['equal']], ['plan_hash'])
        self.assertEqual(set(self.keys(value)), {'sharding.reshard'})
        self.assertEqual(self.stages(value), ['memory_plan', 'schedule'])
        self.expect_line(text, r'^The same results, bit for bit, by another plan or other algorithms\.$')
        # A difference that could not be written down is no answer.
        with open('/dev/full', 'w') as full:
            self.assertEqual(subprocess.run([PROGRAM, 'compare', a.path, b.path], stdout=full, stderr=subprocess.DEVNULL, timeout=60).returncode,
                             IO_FAILED)

    def test_a_killed_run_and_one_with_a_skipped_step(self):
        a = self.train('a')
        b = RunDir(self.path('b'))
        shutil.copytree(a.path, b.path)
        os.remove(b.file('summary.json'))
        truncate(b.file('metrics.jsonl'), os.path.getsize(b.file('metrics.jsonl')) - 20)
        value, text = self.compare(a, b, DIFFER)
        self.assertEqual((value['b']['torn_last_line'], value['b']['steps'], value['b']['last_step']), (True, 5, None))
        self.assertEqual((value['steps_only_in_a'], value['steps_only_in_b']), ([[6, 6]], []))
        self.assertEqual(value['loss']['differing_steps'], 0)
        self.assertEqual(value['hashes']['param_hash'], {'a': a.summary()['param_hash'], 'b': None, 'equal': False})
        self.expect_line(text, r'^No difference in the 5 steps that both have\.$')
        self.expect_line(text, r'^B  .*: 5 steps, the last is 5; no summary\.json: .*; the last line of metrics\.jsonl is cut off')
        self.expect_line(text, r'^steps only in A: 6$')

        config, c = self.config('c.json', run='c', optimizer=CONSTANT)
        self.expect(millrace('train', config, ranks=2, env={'MILLRACE_INJECT': '3:1:loss'}), OK)
        value, text = self.compare(a, c, DIFFER)
        self.assertEqual(value['skipped_in_b'], [{'step': 3, 'offender': 'loss on rank 1'}])
        first = value['loss']['first']
        self.assertEqual((first['step'], first['b'], first['b_bits'], first['ulps']), (3, None, '0x7fc00000', None))
        self.expect_line(text, r'^skipped in B: 3 \(loss on rank 1\)$')

    def test_killed_runs_of_which_one_skipped_its_last_update_or_rolled_back(self):
        a, b = self.train('a'), RunDir(self.path('b'))
        os.remove(a.file('summary.json'))
        shutil.copytree(a.path, b.path)
        self.compare(a, b, OK)
        empty = RunDir(self.path('empty'))
        shutil.copytree(a.path, empty.path)
        truncate(empty.file('metrics.jsonl'), 0)
        self.expect_line(self.compare(empty, empty, DIFFER)[1], r'^There is nothing to compare: neither run has a step\.$')
        lines = b.metrics()
        lines[2]['rolled_back'] = [{'from': 4, 'why': 'loss on rank 1'}]
        lines[5].update(offender='gradient of unit h.0 on rank 1', grad_norm=None)
        with open(b.file('metrics.jsonl'), 'w') as f:
            f.writelines(json.dumps(line) + '\n' for line in lines)
        value, text = self.compare(a, b, DIFFER)
        self.assertFalse(value['same_results'])
        self.assertEqual((value['rolled_back_in_a'], value['rolled_back_in_b']), ([], [{'from': 4, 'to': 2, 'why': 'loss on rank 1'}]))
        self.expect_line(text, r'^The losses are equal in the 6 steps that both have; gradient norms differ\.$')
        self.expect_line(text, r'^rolled back in B: from 4 to 2 \(loss on rank 1\)$')

    def test_a_run_that_begins_anew_puts_the_old_configuration_aside(self):
        self.train('a')
        run = self.train('a', 'checkpoint.resume=never', 'train.seed=3')
        with open(run.file('config.json')) as f:
            self.assertEqual(json.load(f)['keys']['train.seed'], {'value': 3, 'origin': '--set'})
        with open(run.file('config.old-1.json')) as f:
            self.assertEqual(json.load(f)['keys']['train.seed'], {'value': 0, 'origin': 'default'})

    def test_a_configuration_that_is_kept_in_the_folder_stays_there(self):
        os.makedirs(self.path('a'))
        config, run = self.config('a/config.json', run='a', train={'steps': 2})
        with open(config) as f:
            mine = f.read()
        for sets in ([], ['--set', 'checkpoint.resume=never']):
            outcome = self.expect(millrace('train', config, *sets), OK)
            self.expect_line(outcome.err, r'warning: .*/a/config\.json: "step" is missing; .* is left as it is')
            with open(config) as f:
                self.assertEqual(f.read(), mine)
        value, text = self.compare(run, run, OK)
        self.assertIsNone(value['config'])
        self.assertEqual(value['plan_stages'], [])  # from summary.json
        self.expect_line(text, '^configuration: not recorded by both runs')

    def test_what_is_no_run(self):
        run = self.train('a', 'train.steps=1')
        os.makedirs(self.path('empty'))
        self.expect_line(self.expect(program('compare', run.path, self.path('empty')), BAD_DATA).err,
                         r"empty is not a run's folder: it has neither metrics\.jsonl nor config\.json$")
        self.expect_line(self.expect(program('compare', self.path('none'), run.path), BAD_DATA).err, 'none does not exist$')
        self.expect(program('compare', run.path), BAD_CONFIG)
        self.expect(program('compare'), BAD_CONFIG)
        self.expect(program('compare', run.path, run.path, '--jsn'), BAD_CONFIG)
        with open(run.file('metrics.jsonl'), 'r+') as f:
            f.write('x')
        self.expect_line(self.expect(program('compare', run.path, run.path), BAD_DATA).err, r'metrics\.jsonl:1: not valid JSON')


if __name__ == '__main__':
    unittest.main(verbosity=2)
