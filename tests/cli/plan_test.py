"""plan: pages, machines, advice, allocators, recomputation."""
import json
import unittest

from harness import BAD_CONFIG, DOES_NOT_FIT, OK, CliTest, program


class Plan(CliTest):

    def test_plan_needs_no_ranks_and_writes_page_and_trace(self):
        config, _ = self.config()
        page, trace = self.path('plan.html'), self.path('plan.trace')
        outcome = self.expect(program('plan', config, '--world', '64', '--machine', 'h100', '--json', '--html', page, '--trace', trace), OK)
        plan = json.loads(outcome.out)
        self.assertEqual((plan['mesh']['world'], plan['machine']['name']), (64, 'h100'))
        self.assertEqual(set(plan['memory']['bytes_per_rank']),
                         {'parameters', 'gradients', 'optimizer', 'activations', 'workspaces', 'slots', 'runtime'})
        self.assertLessEqual(plan['memory']['lower_bound_bytes'], plan['memory']['arena_bytes'])
        with open(page) as f:
            text = f.read()
        self.assertIn(plan['plan']['hash'], text)
        self.assertNotRegex(text, r'(src|href)="https?:')  # it needs nothing else
        with open(trace) as f:
            events = json.load(f)
        self.assertGreater(len(events['traceEvents'] if isinstance(events, dict) else events), 50)
        self.expect_line(self.expect(program('plan', config), OK).out, 'lower bound')
        # Every machine, and the plan itself.
        seconds = {}
        for machine in ('h100', 'h200', 'cpu'):
            report = json.loads(self.expect(program('plan', config, '--machine', machine, '--json'), OK).out)
            self.assertEqual(report['machine']['name'], machine)
            seconds[machine] = json.dumps(report['roofline'], sort_keys=True)
        self.assertNotEqual(seconds['h100'], seconds['cpu'])
        self.assertIn('adamw', self.expect(program('plan', config, '--text'), OK).out)
        decode = self.expect(program('plan', config, '--text', '--plan', 'decode_8'), OK).out
        self.assertIn('cached_attention', decode)
        self.assertNotIn('adamw', decode)
        # How attention goes about it depends on whose rows it has.
        self.assertNotIn('one_sequence', decode)
        prefill = self.expect(program('plan', config, '--text', '--plan', 'prefill_32'), OK).out
        self.assertRegex(prefill, r'cached_attention.* rows_from=one_sequence')
        self.expect_line(self.expect(program('plan', config, '--text', '--plan', 'decode_3'), BAD_CONFIG).err, '--plan is decode_3; allowed are .*decode_1, decode_8')

    def test_plan_takes_a_machine_file_and_says_what_is_wrong_with_one(self):
        config, _ = self.config()
        with open('configs/machines/h200.json') as f:
            machine = json.load(f)
        path = self.path('here.json')
        def plan(**sections):
            with open(path, 'w') as f:
                json.dump({**machine, **sections}, f)
            return program('plan', config, '--world', '2', '--machine', path, '--set', 'execution.backend=cuda')
        named = self.expect(program('plan', config, '--world', '2', '--machine', 'h200', '--set', 'execution.backend=cuda'), OK).out
        self.assertEqual(self.expect(plan(), OK).out, named)
        self.expect_line(named, 'step +.* at best ')
        measured = self.expect(plan(measured='2026-11-22, here'), OK).out
        self.assertNotIn('at best', measured)
        self.expect_line(measured, 'measured: 2026-11-22, here')
        self.expect_line(self.expect(plan(link={**machine['link'], 'gb_s': 0}), BAD_CONFIG).err, r'here\.json: link\.gb_s: 0; allowed: a number above 0')
        self.expect_line(self.expect(plan(colour=1), BAD_CONFIG).err, r'here\.json: colour: unknown key; allowed: ')
        self.expect_line(self.expect(program('plan', config, '--machine', './none.json'), BAD_CONFIG).err, r'\./none\.json cannot be read')

    def test_plan_is_of_what_its_machine_has(self):
        def planned(*words):
            outcome = self.expect(program('plan', 'configs/gpt2_124m.json', '--json', *words), OK)
            plan = json.loads(outcome.out)
            return outcome.err, plan['machine']['name'], plan['plan']['hash']
        notes, machine, on_cpus = planned()
        self.assertEqual(machine, 'cpu')
        self.expect_line(notes, 'note: execution.backend = auto: planned for CPUs; --machine h100')
        notes, machine, on_gpus = planned('--set', 'execution.backend=cuda')
        self.assertEqual(machine, 'h100')
        self.assertNotIn('planned for', notes)
        self.assertNotEqual(on_cpus, on_gpus)
        self.assertEqual(planned('--machine', 'cpu')[1:], ('cpu', on_cpus))
        for words in (('--machine', 'h200'), ('--machine', 'configs/machines/h200.json')):
            notes, machine, found = planned(*words)
            self.assertEqual((machine, found), ('h200', on_gpus))
            self.assertNotIn('planned for', notes)
        # What is asked for by name is planned, whatever the rates.
        self.assertEqual(planned('--machine', 'h200', '--set', 'execution.backend=cpu')[1:], ('h200', on_cpus))
        # Defaults are those of what is planned: documents are masked on CPUs.
        documents = ('--set', 'data.kind=text', '--set', 'data.path=/usr/share/common-licenses', '--set', 'data.end_of_document=0')
        masked = planned(*documents, '--machine', 'cpu', '--set', 'execution.backend=cpu')[2]
        for words, said, found in (((), 'is on', masked), (('--machine', 'cpu'), 'is on', masked), (('--machine', 'h100'), 'is off', None)):
            notes, _, plan = planned(*documents, *words)
            self.expect_line(notes, f'note: data.document_mask {said}, ')
            self.assertEqual(plan == masked, found == masked)

    def test_plan_refuses_of_auto_what_its_machine_cannot_do(self):
        def refused(*words):
            return self.expect(program('plan', 'configs/gpt2_124m.json', '--world', '2', *words), BAD_CONFIG).err
        rounding = ('--set', 'sharding.downcast=in_gather', '--set', 'execution.peer_memory=off')
        self.expect_line(refused('--machine', 'h100', *rounding), 'NCCL does not round while it gathers')
        self.expect(program('plan', 'configs/gpt2_124m.json', '--world', '2', *rounding), OK)
        for words in ((), ('--machine', 'cpu')):
            self.expect_line(refused(*words, '--set', 'execution.peer_memory=on'), 'this run is on the CPU')

    def test_plan_advises(self):
        config, _ = self.config()
        def advise(*options):
            return program('plan', config, '--world', '4', '--machine', 'h200', '--set', 'execution.backend=cuda', '--advise', *options)
        advice = json.loads(self.expect(advise('--json'), OK).out)
        self.assertEqual(len(advice['best']), 5)
        times = [plan['step_s'] for plan in advice['best']]
        self.assertEqual(times, sorted(times))
        # What is advised is what `plan` says of these choices.
        words = [word for choice in advice['best'][0]['choices'].split() for word in ('--set', choice)]
        report = json.loads(self.expect(program('plan', config, '--world', '4', '--machine', 'h200', '--json', '--set', 'execution.backend=cuda', *words), OK).out)
        self.assertAlmostEqual(report['time']['step_s'], times[0], delta=1e-9)
        self.assertEqual(report['batch']['tokens_per_step'], advice['tokens_per_step'])
        self.expect_line(self.expect(advise(), OK).out, 'parallel.replicate=.* train.micro_batch=', count=5)
        self.expect_line(self.expect(advise('--set', 'memory.budget_gib=0.0001'), DOES_NOT_FIT).err, 'nothing fits: the closest of ')

    def test_plan_takes_stated_speeds_of_links_up_to_1024_ranks(self):
        config, _ = self.config(parallel={'shard': 8, 'replicate': 128})
        def plan(*options):
            return program('plan', config, '--world', '1024', '--machine', 'h200', *options)
        def exposed(*options):
            figures = json.loads(self.expect(plan('--json', *options), OK).out)
            # Of the ops by themselves: streams that share a link take longer in the step.
            kinds = {kind['kind']: kind['seconds'] for kind in figures['roofline']['by_kind']}
            return figures['machine'], {'gather': kinds['all_gather'], 'reduce': kinds['all_reduce'], 'statistics': figures['wire']['by_purpose']['statistics']}
        machine, busy = exposed()
        self.assertEqual((machine['ranks_per_host'], machine['host_link_bytes_per_s']), (8, 50e9))
        machine, slow = exposed('--host-link', '0.05')
        self.assertEqual(machine['host_link_bytes_per_s'], 5e7)
        self.assertGreater(slow['reduce'], busy['reduce'])  # replicas are on different hosts
        # A copy's shards are on one host; only the gather of statistics crosses, over the links of all eight.
        self.assertAlmostEqual(slow['gather'] - busy['gather'], slow['statistics'] / 8 * (1 / 5e7 - 1 / 50e9), delta=1e-7)
        machine, apart = exposed('--host-link', '0.05', '--ranks-per-host', '4')
        self.assertGreater(apart['gather'], slow['gather'])
        machine, within = exposed('--link', '1')
        self.assertEqual(machine['link_bytes_per_s'], 1e9)
        self.assertGreater(within['gather'], busy['gather'])
        self.expect_line(self.expect(plan('--ranks-per-host', '4', '--host-link', '25'), OK).out,
                         r'^ *between hosts +4 ranks to a host, 25\.0 ?GB/s from each to other hosts')
        outcome = self.expect(program('plan', config, '--world', '1024', '--machine', 'cpu', '--ranks-per-host', '4'), BAD_CONFIG)
        self.expect_line(outcome.err, '--host-link GB/s')
        # 0 is no way to say "the machine's own", and a time that is no finite number is no answer.
        for option, wrong in ((option, wrong) for option in ('--link', '--host-link') for wrong in ('0', '-1', 'nan', 'inf', '1e-320', '1e308')):
            self.expect_line(self.expect(plan(option, wrong), BAD_CONFIG).err, option)
        for wrong in ('0', '-3', '1.5', '99999999999'):
            self.expect_line(self.expect(plan('--ranks-per-host', wrong), BAD_CONFIG).err, '--ranks-per-host')

    def test_plan_recomputes_what_a_budget_or_a_device_asks_for(self):
        def plan(*options, machine='h200'):
            sets = [word for option in ('execution.backend=cuda', 'sharding.blocks_per_unit=1', *options) for word in ('--set', option)]
            return program('plan', 'configs/gpt2_124m.json', '--machine', machine, '--json', *sets)
        def planned(*options, **machine):
            return json.loads(self.expect(plan(*options, **machine), OK).out)
        free = planned('train.micro_batch=64')
        self.assertGreater(free['memory']['arena_bytes'], 20 * 2 ** 30)
        self.assertEqual((free['recompute']['auto'], free['recompute']['ops']), (False, 0))
        tight = planned('train.micro_batch=64', 'memory.recompute=auto', 'memory.budget_gib=20')
        again = tight['recompute']
        self.assertLessEqual(tight['memory']['arena_bytes'], 20 * 2 ** 30)
        self.assertEqual(free['memory']['arena_bytes'] - tight['memory']['arena_bytes'], again['saved_bytes'])
        self.assertEqual((again['block_units'], again['everything']), (12, 0))
        self.assertTrue(0 < again['activations'] + again['norms'] < 6, again)
        self.assertAlmostEqual(tight['time']['step_s'] - free['time']['step_s'], again['seconds'], delta=2e-5)
        self.assertLess(again['seconds'], 0.01 * free['time']['step_s'])
        text = self.expect(program('plan', 'configs/gpt2_124m.json', '--set', 'execution.backend=cuda', '--set', 'sharding.blocks_per_unit=1', '--set', 'memory.recompute=auto',
                                   '--set', 'memory.budget_gib=20'), OK).out
        self.expect_line(text, r'^  recomputed  .*auto: activations in \d+, norms in \d+ of 12 block units')
        outcome = self.expect(plan('memory.recompute=auto', 'memory.budget_gib=1'), DOES_NOT_FIT)
        self.expect_line(outcome.err, r'needs \d+ bytes per rank even with every block computed again .* memory.budget_gib allows 1073741824;')
        # Without a budget the device decides.
        kept = planned('train.micro_batch=512', 'memory.recompute=auto', machine='h200')
        less = planned('train.micro_batch=512', 'memory.recompute=auto', machine='h100')
        for report in (kept, less):
            self.assertLessEqual(report['memory']['device_bytes'], report['memory']['device_has_bytes'])
        self.assertLess(kept['recompute']['ops'], less['recompute']['ops'])
        self.assertEqual(planned('memory.recompute=auto')['recompute']['ops'], 0)

    def test_plan_shows_every_allocator_beside_the_bound(self):
        words = ('plan', 'configs/nemotron_h_8b.json', '--world', '8', '--set', 'execution.backend=cuda')
        found = json.loads(self.expect(program(*words, '--allocators', '--json'), OK).out)
        allocators, bound = found['allocators'], found['lower_bound']
        self.assertEqual(set(allocators), {'dynamic', 'persistent', 'fixed', 'max_pool', 'coloured', 'packed'})
        self.assertEqual(allocators['packed']['parameter_pool_bytes'], bound['parameter_pool_bytes'])
        for name in allocators:
            planned = json.loads(self.expect(program(*words, '--set', 'memory.allocator=%s' % name, '--json'), OK).out)['memory']
            self.assertEqual(allocators[name]['arena_bytes'], planned['arena_bytes'], name)
            self.assertEqual(bound['arena_bytes'], planned['lower_bound_bytes'], name)
        text = self.expect(program(*words, '--allocators'), OK).out
        self.expect_line(text, r'^  lower bound +[0-9.]+ [MG]iB +[0-9.]+ [MG]iB +[0-9.]+ GiB +1\.000$')
        for name in allocators:
            self.expect_line(text, r'^  %s +[0-9.]+ [MG]iB +[0-9.]+ [MG]iB +[0-9.]+ GiB +1\.\d{3}$' % name)


if __name__ == '__main__':
    unittest.main(verbosity=2)
