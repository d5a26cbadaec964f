"""The verbs beside train: eval, generate, inspect, plan, bench."""
import json
import math
import os
import re
import struct
import unittest

from harness import BAD_CHECKPOINT, BAD_CONFIG, BAD_DATA, DOES_NOT_FIT, IO_FAILED, OK, CliTest, flip_bit, millrace, program, raw_mpirun, truncate

HYBRIDS = ('nemotron_3_nano_ep1', 'nemotron_3_nano_ep8', 'nemotron_h_8b')


class Verbs(CliTest):

    def train(self, **sections):
        config, run = self.config(**sections)
        self.expect(millrace('train', config, ranks=2), OK)
        return config, run

    def test_doctor_finds_a_host_that_can_train_and_names_what_a_package_misses(self):
        # The program without CUDA is not the best for a host with a GPU, and doctor says so.
        gpu_host = os.path.exists('/proc/driver/nvidia/version')
        outcome = self.expect(program('doctor'), BAD_CONFIG if gpu_host else OK)
        self.expect_line(outcome.out, r'^  MPI +Open MPI v4\.\d+.*libmpi\.so\.40.*compiled with Open MPI 4\.')
        self.expect_line(outcome.out, r'^  BLAS +OpenBLAS \d')
        self.expect_line(outcome.out, r'^  arithmetic +products of known result are right, f32 and bf16')
        self.expect_line(outcome.out, 'there is a GPU driver, but this program was built without CUDA' if gpu_host else
                         '^training works here, on the CPU$')
        found = json.loads(program('doctor', '--json').out)
        self.assertEqual((found['ok'], found['backend'], found['gpus']), (not gpu_host, 'cpu', []))
        self.assertIn('host', [finding['name'] for finding in found['findings']])
        # What bin/millrace of a package tells it.
        missing = program('doctor', '--json', env={'MILLRACE_MISSING_LIBRARIES': 'libnccl.so.2, libcudnn.so.9'})
        cuda = [finding for finding in json.loads(missing.out)['findings'] if finding['name'] == 'CUDA'][0]
        self.assertIn('libnccl.so.2, libcudnn.so.9', cuda['trouble'])
        self.assertIn('pip install nvidia-nccl-cu13', cuda['fix'])
        self.assertEqual(missing.code, BAD_CONFIG if cuda['serious'] else OK)

    def test_doctor_names_an_mpirun_of_another_mpi(self):
        folder = self.path('bin')
        os.mkdir(folder)
        with open(os.path.join(folder, 'mpirun'), 'w') as f:
            f.write('#!/bin/sh\necho "mpirun (Open MPI) 5.0.3"\n')
        os.chmod(os.path.join(folder, 'mpirun'), 0o755)
        outcome = self.expect(program('doctor', env={'PATH': folder + ':' + os.environ['PATH']}), BAD_CONFIG)
        self.expect_line(outcome.out, 'mpirun is of another Open MPI than the library')
        self.expect_line(outcome.out, '^training on the best that this host has cannot work')

    def test_eval_is_the_held_out_loss_of_the_checkpoint(self):
        config, run = self.train(train={'eval_every': 3})
        expected = {line['step']: line['eval_loss'] for line in run.metrics() if 'eval_loss' in line}
        result = json.loads(self.expect(millrace('eval', config, ranks=2), OK).out)
        self.assertEqual(result['step'], 6)
        self.assertEqual(result['eval_loss'], expected[6])
        self.assertAlmostEqual(result['perplexity'], math.exp(result['eval_loss']), delta=1e-9 * result['perplexity'])
        # Twice the batches for one rank: the same windows.
        alone = json.loads(self.expect(millrace('eval', config, '--set', 'data.eval_batches=4'), OK).out)
        self.assertAlmostEqual(alone['eval_loss'], expected[6], delta=1e-5)
        older = json.loads(self.expect(millrace('eval', config, '--checkpoint', run.checkpoint(4)), OK).out)
        self.assertEqual(older['step'], 4)
        self.assertNotEqual(older['eval_loss'], alone['eval_loss'])

    def test_generate_is_the_same_text_by_its_seed_on_any_number_of_ranks(self):
        config, run = self.train(train={'steps': 20})
        words = ['generate', config, '--prompt', 'Sentence', '--tokens', '60']
        texts = {}
        for ranks in (1, 2, 3):
            for seed in ('1', '2'):
                outcome = self.expect(millrace(*words, '--seed', seed, ranks=ranks), OK)
                self.expect_line(outcome.err, '^millrace: weights of step 20 from %s$' % run.checkpoint(20))
                self.expect_line(outcome.err, 'no key/value cache yet')
                self.assertTrue(outcome.out.startswith('Sentence'), outcome)
                self.assertEqual(len(outcome.out), len('Sentence') + 60 + 1, outcome)
                texts[ranks, seed] = outcome.out
        for ranks in (2, 3):
            for seed in ('1', '2'):
                self.assertEqual(texts[ranks, seed], texts[1, seed])
        self.assertNotEqual(texts[1, '1'], texts[1, '2'])
        greedy = [self.expect(millrace(*words, '--temperature', '0', '--seed', seed), OK).out for seed in ('1', '2')]
        self.assertEqual(greedy[0], greedy[1])
        likeliest = self.expect(millrace(*words, '--top-k', '1', '--seed', '3'), OK).out
        self.assertEqual(likeliest, greedy[0])

    def test_eval_and_generate_need_a_sound_checkpoint(self):
        config, run = self.config()
        for verb in ('eval', 'generate'):
            outcome = self.expect(millrace(verb, config, ranks=2), BAD_CHECKPOINT)
            self.expect_line(outcome.err, '%s holds no usable checkpoint' % run.file('checkpoints'))
        self.expect(millrace('train', config, ranks=2), OK)
        shard = run.checkpoint(6, 'rank_00001.safetensors')
        flip_bit(shard, os.path.getsize(shard) - 9)
        for verb in ('eval', 'generate'):
            outcome = self.expect(millrace(verb, config, ranks=2), BAD_CHECKPOINT)
            self.expect_line(outcome.err, 'checkpoint %s cannot be used: %s' % (run.checkpoint(6), shard))
            self.expect(millrace(verb, config, '--checkpoint', run.checkpoint(4), ranks=2), OK)
        self.assertEqual(run.others(), [])  # looking moves nothing

    def test_inspect_a_checkpoint_and_a_run(self):
        config, run = self.train()
        outcome = self.expect(program('inspect', run.checkpoint(6)), OK)
        self.expect_line(outcome.out, '^checkpoint of step 6 by 2 ranks: 2 files, ')
        self.expect_line(outcome.out, '^model: family=llama layers=2 d_model=32 ')
        self.expect_line(outcome.out, '^every checksum matches$')
        value = json.loads(self.expect(program('inspect', '--json', run.checkpoint(6)), OK).out)
        self.assertEqual((value['kind'], value['step'], value['world'], value['adam_t'], value['skipped'], value['samples'], value['sound']),
                         ('checkpoint', 6, 2, 6, 0, 48, True))
        outcome = self.expect(program('inspect', '--json', run.path), OK)
        self.assertEqual([json.loads(line)['step'] for line in outcome.out.splitlines()], [6, 4])

        # Every blob of a rank but its header: the first ten are shown.
        path = run.checkpoint(4, 'rank_00001.safetensors')
        with open(path, 'rb') as f:
            whole = f.read()
        with open(path, 'wb') as f:
            header = 8 + int.from_bytes(whole[:8], 'little')
            f.write(whole[:header] + bytes(byte ^ 1 for byte in whole[header:]))
        for words, prefix in (((), '^'), (('--verify',), '^%s: ' % run.checkpoint(4))):
            outcome = self.expect(program('inspect', *words, run.checkpoint(4)), BAD_CHECKPOINT)
            all_of_them = json.loads(self.expect(program('inspect', *words, '--json', run.checkpoint(4)), BAD_CHECKPOINT).out)['problems']
            self.assertGreater(len(all_of_them), 10)
            self.expect_line(outcome.out, prefix + r'damaged: \S+/rank_00001\.safetensors: blob ".*" .* is damaged: its XXH3-128', count=10)
            self.expect_line(outcome.out, prefix + r'damaged: %d more \(--json lists all\)$' % (len(all_of_them) - 10))
            self.expect_line(outcome.out, 'damaged: ', count=11)
        with open(path, 'wb') as f:
            f.write(whole)

        truncate(run.checkpoint(4, 'rank_00000.safetensors'), 100)
        outcome = self.expect(program('inspect', '--json', run.path), BAD_CHECKPOINT)
        sound, damaged = [json.loads(line) for line in outcome.out.splitlines()]
        self.assertTrue(sound['sound'])
        self.assertFalse(damaged['sound'])
        self.assertIn('rank_00000.safetensors has 100 bytes', damaged['problems'][0])
        os.remove(run.checkpoint(6, 'manifest.json'))
        outcome = self.expect(program('inspect', run.path), BAD_CHECKPOINT)
        self.expect_line(outcome.out, '^damaged: .*%s' % run.checkpoint(6, 'manifest.json'))
        self.expect_line(outcome.out, '^do not use it$', 2)
        self.expect(program('inspect', run.checkpoint(6)), BAD_CHECKPOINT)
        self.expect(program('inspect', self.path('nothing')), BAD_DATA)
        os.makedirs(self.path('empty', 'checkpoints'))
        self.expect(program('inspect', self.path('empty')), BAD_CHECKPOINT)

    def test_inspect_tokens_and_safetensors(self):
        tokens = self.path('tokens.bin')
        with open(tokens, 'wb') as f:
            f.write(struct.pack('<1000H', *range(1000)))
        value = json.loads(self.expect(program('inspect', '--json', tokens), OK).out)
        self.assertEqual((value['kind'], value['tokens']), ('tokens', 1000))
        truncate(tokens, 1999)
        outcome = self.expect(program('inspect', tokens), BAD_DATA)
        self.expect_line(outcome.err, '%s has 1999 bytes' % tokens)

        header = json.dumps({'w': {'dtype': 'F32', 'shape': [2, 3], 'data_offsets': [0, 24]}}).encode()
        tensors = self.path('model.safetensors')
        with open(tensors, 'wb') as f:
            f.write(struct.pack('<Q', len(header)) + header + struct.pack('<6f', *range(6)))
        value = json.loads(self.expect(program('inspect', '--json', tensors), OK).out)
        self.assertEqual(value['tensors'], [{'name': 'w', 'dtype': 'F32', 'shape': [2, 3]}])
        truncate(tensors, 20)
        outcome = self.expect(program('inspect', tensors), BAD_DATA)
        self.expect_line(outcome.err, tensors)

    def test_plan_needs_no_ranks_and_writes_page_and_trace(self):
        config, _ = self.config()
        page, trace = self.path('plan.html'), self.path('plan.trace')
        outcome = self.expect(program('plan', config, '--world', '64', '--json', '--html', page, '--trace', trace), OK)
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

    def test_doctor_measures_this_host_for_plan(self):
        config, _ = self.config()
        path = self.path('this_host.json')
        said = self.expect(raw_mpirun(2, 'doctor', '--measure', path), OK).out
        self.expect_line(said, 'GB/s')
        with open(path) as f:
            machine = json.load(f)
        self.assertRegex(machine['measured'], r'^20\d\d-\d\d-\d\d, doctor --measure, 2 ranks$')
        self.assertEqual(len(machine['gemm']['shapes']), 6)
        self.assertRegex(machine['sources']['all'], r'copy [\d.]+ \([\d.]+ to [\d.]+\) GB/s')
        self.assertRegex(machine['sources']['all'], r'64 KiB: gather [\d.]+ \([\d.]+ to [\d.]+\), reduce-scatter')
        text = self.expect(program('plan', config, '--world', '2', '--machine', path, '--set', 'execution.backend=cpu'), OK).out
        self.assertNotIn('at best', text)
        self.expect_line(text, 'doctor --measure, 2 ranks')

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

    def test_plan_of_the_hybrid_pools(self):
        for name in HYBRIDS:
            with self.subTest(name):
                outcome = self.expect(program('plan', 'configs/hybrid/%s.json' % name, '--pool-only', '--json'), OK)
                pool = json.loads(outcome.out)['pool']
                self.assertEqual(set(pool), {'dynamic', 'persistent', 'fixed', 'max_pool', 'coloured', 'packed', 'lower_bound'})
                self.assertEqual(pool['packed'], pool['lower_bound'])
                for other in ('dynamic', 'persistent', 'fixed', 'max_pool', 'coloured'):
                    self.assertGreaterEqual(pool[other], pool['lower_bound'])
                self.assertTrue(1.2 <= pool['max_pool'] / pool['lower_bound'] <= 1.95, pool)

    def test_bench_says_nothing_of_data_that_it_does_not_read(self):
        config, _ = self.config()
        for sets in ((), ('--set', 'data.path=there', '--set', 'data.val_path=there')):
            outcome = self.expect(millrace('bench', config, '--steps', '1', '--warmup', '0', '--json', *sets), OK)
            self.assertNotIn('data.', outcome.err)

    def test_bench_names_the_graphs_that_ran(self):
        config, _ = self.config()
        for sets, graph in ((['execution.graph=microbatch'], 'microbatch'), (['execution.checked=true'], 'off')):
            words = [word for assignment in sets for word in ('--set', assignment)]
            outcome = self.expect(millrace('bench', config, '--steps', '1', '--warmup', '0', '--json', *words), OK)
            self.assertEqual(json.loads(outcome.out)['graph'], graph)

    def test_bench_is_one_line_of_json(self):
        config, run = self.config()
        for ranks, options in ((1, ['--set', 'execution.graph=off']), (2, [])):
            outcome = self.expect(millrace('bench', config, '--steps', '6', '--warmup', '2', '--json', *options, ranks=ranks), OK)
            self.assertEqual(len(outcome.out.splitlines()), 1, outcome)
            line = json.loads(outcome.out)
            self.assertLessEqual(line['step_ms_p10'], line['step_ms'])
            self.assertLessEqual(line['step_ms'], line['step_ms_p90'])
            self.assertEqual((line['world'], line['steps'], line['warmup'], line['device'], line['deterministic']), (ranks, 6, 2, 'cpu', True))
            self.assertEqual(line['graph'], 'off' if ranks == 1 else 'step')
            tokens = 2 * 2 * 32  # micro_batch * accumulate * seq_len
            self.assertAlmostEqual(line['tokens_per_s_per_rank'], tokens / (line['step_ms'] / 1e3), delta=1e-6 * line['tokens_per_s_per_rank'])
            for kind in ('causal', 'full'):
                flops = line['tokens_per_s_per_rank'] * line['model_flops_per_token_' + kind]
                self.assertAlmostEqual(line['mfu_' + kind], flops / line['peak_flops_per_rank'], delta=1e-9)
            # 6 per parameter of a matrix, and per layer 6 (causal; 12 full) * T * width.
            matrices = 2 * (4 * 32 * 32 + 3 * 32 * 64) + 32 * 256
            self.assertEqual(line['model_flops_per_token_causal'], 6 * matrices + 6 * 2 * 32 * 32)
            self.assertEqual(line['model_flops_per_token_full'], 6 * matrices + 12 * 2 * 32 * 32)
            self.assertIn('peak', line['mfu_basis'])
            self.assertGreater(line['peak_bytes'], 1 << 20)
            # Some of the step, and not all of it: steps of their own, which no other figure counts.
            self.assertEqual(line['host_us_per_step'], sorted(line['host_us_samples'])[4])
            self.assertEqual((len(line['host_us_samples']), len(line['step_ms_samples'])), (9, 6))
            self.assertTrue(0 < line['host_us_per_step'] < 1e3 * line['step_ms'], line)
            plan = json.loads(self.expect(millrace('plan', config, '--world', str(ranks), '--json', *options), OK).out)
            self.assertEqual(line['gathered_bytes_per_step'], plan['step']['gathered_bytes'])
        self.assertFalse(os.path.exists(run.path))  # a benchmark leaves nothing

    def test_bench_times_every_kind_of_op_of_the_plan(self):
        config, _ = self.config()
        bench = json.loads(self.expect(millrace('bench', config, '--steps', '3', '--warmup', '1', '--json', '--ops', ranks=2), OK).out)
        plan = json.loads(self.expect(millrace('plan', config, '--world', '2', '--json'), OK).out)
        predicted = {kind['kind']: kind for kind in plan['roofline']['by_kind']}
        measured = {row['op']: row for row in bench['ops']}
        self.assertEqual(measured.keys(), predicted.keys())
        for name, row in measured.items():
            self.assertEqual(row['count'], predicted[name]['count'], name)
            self.assertGreater(row['ms'], 0, name)
        self.assertEqual([row['ms'] for row in bench['ops']], sorted((row['ms'] for row in bench['ops']), reverse=True))
        # --ops does not change what the other figures count.
        plain = json.loads(self.expect(millrace('bench', config, '--steps', '3', '--warmup', '1', '--json', ranks=2), OK).out)
        self.assertEqual(plain['gathered_bytes_per_step'], bench['gathered_bytes_per_step'])
        text = self.expect(millrace('bench', config, '--steps', '3', '--warmup', '1', '--ops'), OK).out
        self.expect_line(text, '^matmul ')
        refused = self.expect(millrace('bench', config, '--steps', '3', '--ops', '--set', 'execution.checked=true'), 2)
        self.assertIn('execution.checked', refused.err)

    def test_bench_writes_a_trace_of_a_step_of_all_ranks_on_one_clock(self):
        config, _ = self.config()
        path = os.path.join(self.folder, 'step.json')
        text = self.expect(millrace('bench', config, '--steps', '2', '--warmup', '1', '--trace', path, ranks=2), OK).out
        self.expect_line(text, r'^traced an eager step: steps take [0-9.]+ ms op by op with events, [0-9.]+ ms without$')
        plan = json.loads(self.expect(millrace('plan', config, '--world', '2', '--json'), OK).out)
        with open(path) as file:
            trace = json.load(file)
        self.assertEqual(trace['otherData']['trace']['step'], 'eager')  # the CPU replays no graph
        self.assertGreater(trace['otherData']['trace']['step_ms_instrumented'], 0)
        events = trace['traceEvents']
        names = {(e['pid'], e['args']['name']) for e in events if e['name'] == 'process_name'}
        self.assertEqual(names, {(0, 'rank 0'), (1, 'rank 1')})
        collectives = []
        for rank in (0, 1):
            spans = [e for e in events if e['ph'] == 'X' and e['pid'] == rank]
            counts = {kind: sum(e['cat'] == kind for e in spans) for kind in {e['cat'] for e in spans}}
            self.assertEqual(counts, {kind['kind']: kind['count'] for kind in plan['roofline']['by_kind']})
            # On the CPU an op has run when the next is issued.
            for before, after in zip(spans, spans[1:]):
                self.assertLessEqual(before['ts'] + before['dur'], after['ts'] + 1e-3)
            self.assertGreaterEqual(spans[0]['ts'], 0)
            collectives.append([e for e in spans if e['cat'] in ('all_gather', 'reduce_scatter')])
        # No rank leaves a collective before the other has come to it: so both are on one clock.
        self.assertEqual(*([e['name'] for e in of_rank] for of_rank in collectives))
        for a, b in zip(*collectives):
            self.assertLessEqual(max(a['ts'], b['ts']), min(a['ts'] + a['dur'], b['ts'] + b['dur']), a['name'])
        # Before it measures: so many steps would take hours.
        refused = self.expect(millrace('bench', config, '--steps', '1000000', '--trace', os.path.join(self.folder, 'no', 'folder.json')), IO_FAILED)
        self.assertIn('no/folder.json', refused.err)
        refused = self.expect(millrace('bench', config, '--steps', '1000000', '--trace', self.folder, ranks=2), IO_FAILED)
        self.assertIn('is a folder', refused.err)

    def test_bench_measures_the_floor_of_a_step_op_by_op(self):
        config, _ = self.config()
        bench = json.loads(self.expect(millrace('bench', config, '--steps', '3', '--warmup', '1', '--json', '--floor', ranks=2), OK).out)
        floor, rows = bench['floor'], {row['op']: row for row in bench['ops']}
        alone = {}
        for row in floor['alone']:
            kind = row['op'].split()[0]
            count, ms = alone.get(kind, (0, 0))
            alone[kind] = (count + row['count'], ms + row['count'] * row['us'] / 1e3)
        self.assertEqual(set(alone), {'matmul', 'attention', 'attention_grad', 'all_gather', 'reduce_scatter'})
        for kind, (count, ms) in alone.items():
            self.assertEqual(count, rows[kind]['count'], kind)
            self.assertAlmostEqual(ms, floor['kind_ms'][kind], delta=1e-6 + 1e-6 * ms)
        for kind, row in rows.items():
            self.assertEqual(row['floor_ms'], floor['kind_ms'][kind], kind)
            if kind not in alone and kind not in ('step_stats', 'begin_step', 'embed'):
                bytes_alone = row['memory_bytes'] / floor['copy_bytes_per_s'] * 1e3
                self.assertAlmostEqual(row['floor_ms'], bytes_alone, delta=1e-6 + 1e-3 * bytes_alone, msg=kind)
        self.assertAlmostEqual(sum(floor['stream_ms'].values()), sum(floor['kind_ms'].values()), delta=1e-6)
        self.assertEqual(bench['floor_ms'], max(floor['stream_ms'].values()))
        self.assertGreater(floor['copy_bytes_per_s'], 1e8)
        # The other floor has none of our products and collectives in it: FLOPs and bytes at rates.
        rates = bench['rate_floor']
        (product,) = rates['products']
        self.assertEqual((product['dtype'], product['m'] * product['n'] * product['k'] % 2), ('f32', 0))
        self.assertGreater(product['seconds'], 0)
        self.assertAlmostEqual(rates['products_ms'], 1e3 * rows['matmul']['flops'] / product['flops_per_s'], delta=1e-6 * rates['products_ms'])
        self.assertAlmostEqual(rates['attention_ms'], floor['kind_ms']['attention'] + floor['kind_ms']['attention_grad'], delta=1e-9)
        wire = sum(row['wire_bytes'] for row in rows.values())
        self.assertGreater(wire, 0)
        self.assertAlmostEqual(rates['wire_ms'], 1e3 * wire / rates['link_bytes_per_s'], delta=1e-6 * rates['wire_ms'])
        others = set(rows) - {'matmul', 'attention', 'attention_grad', 'all_gather', 'reduce_scatter', 'all_reduce'}
        self.assertAlmostEqual(rates['memory_ms'], sum(floor['kind_ms'][kind] for kind in others), delta=1e-6)
        self.assertAlmostEqual(rates['ms'], max(rates['products_ms'] + rates['attention_ms'] + rates['memory_ms'], rates['wire_ms']), delta=1e-9)
        self.assertEqual(bench['rate_floor_ms'], rates['ms'])

    def test_bench_times_the_update_per_tensor_and_per_flat_parameter(self):
        config, _ = self.config()
        bench = json.loads(self.expect(millrace('bench', config, '--steps', '2', '--warmup', '1', '--json', '--update', ranks=2), OK).out)
        plan = json.loads(self.expect(millrace('plan', config, '--world', '2', '--json'), OK).out)
        flats = next(kind['count'] for kind in plan['roofline']['by_kind'] if kind['kind'] == 'adamw')
        tensor, flat = bench['updates']  # the CPU captures nothing: no graphs
        self.assertEqual([tensor['name'], flat['name']], ['per tensor, launches', 'per flat, launches'])
        # A norm and an update each, and the clip factor. A rank has parts of some tensors only.
        self.assertEqual((flat['kernels'], flat['launches']), (2 * flats + 1, 2 * flats + 1))
        self.assertGreater(tensor['kernels'], flat['kernels'])
        self.assertEqual({len(row[key]) for row in (tensor, flat) for key in ('us_samples', 'host_us_samples')}, {30})
        self.assertGreater(min(tensor['us_samples']), 0)

    def test_bench_writes_the_recorded_step_as_a_graph(self):
        config, _ = self.config()
        path = os.path.join(self.folder, 'step.dot')
        bench = ('bench', config, '--steps', '2', '--warmup', '1', '--graph-dot', path)
        self.expect(millrace(*bench, ranks=2), OK)
        with open(path) as file:
            text = file.read()
        plan = json.loads(self.expect(millrace('plan', config, '--world', '2', '--json'), OK).out)
        self.assertEqual(text.count('[label='), plan['step']['ops'])
        for stream in ('compute', 'gather', 'reduce'):
            self.assertIn('n' + stream + '"', text)
        # What the plan orders between streams, and on each stream all but the first op after another.
        self.assertGreater(text.count('[style=dashed]'), 0)
        plain = [line for line in text.splitlines() if re.fullmatch(r'  op_[0-9]+ -> op_[0-9]+;', line)]
        self.assertEqual(len(plain), plan['step']['ops'] - 3)
        for begin, end in re.findall('op_([0-9]+) -> op_([0-9]+)', text):
            self.assertLess(int(begin), int(end))
        # One graph per body.
        self.expect(millrace(*bench, '--set', 'execution.graph=microbatch'), OK)
        for number in range(2):
            self.assertTrue(os.path.exists(os.path.join(self.folder, f'step.{number}.dot')))
        for assignment in ('execution.graph=off', 'execution.checked=true'):
            refused = self.expect(millrace(*bench, '--set', assignment), 2)
            self.assertIn('--graph-dot: nothing is recorded with execution.graph = off or execution.checked = true', refused.err)
        refused = self.expect(millrace('bench', config, '--steps', '1000000', '--graph-dot', self.folder), IO_FAILED)
        self.assertIn('--graph-dot', refused.err)


if __name__ == '__main__':
    unittest.main(verbosity=2)
