"""bench: a step as a whole, op by op, and tokens of a generator."""
import json
import os
import re
import unittest

from harness import BAD_CONFIG, IO_FAILED, OK, CliTest, millrace, program


# Of the CPU. What GPUs tell: tests/runtime/api/step_power_test.cc.
NO_POWER = {'not_measured': {'sm_mhz': 'on the CPU', 'watts': 'on the CPU'}}


class Bench(CliTest):

    def test_bench_says_nothing_of_data_that_it_does_not_read(self):
        config, _ = self.config()
        for sets in ((), ('--set', 'data.path=there', '--set', 'data.val_path=there')):
            outcome = self.expect(millrace('bench', config, '--steps', '1', '--warmup', '0', '--json', *sets), OK)
            self.assertNotIn('data.', outcome.err)

    def test_bench_times_the_tokens_of_a_generator(self):
        config, _ = self.config()
        words = ('bench', config, '--decode', '1,3', '--steps', '5', '--warmup', '1')
        bench = json.loads(self.expect(millrace(*words, '--json', ranks=2), OK).out)
        self.assertEqual([row['batch'] for row in bench['decode']], [1, 3])
        for row in bench['decode']:
            self.assertEqual(len(row['step_ms_samples']), 5)
            self.assertEqual(row['step_ms'], sorted(row['step_ms_samples'])[2])
            self.assertLessEqual(row['step_ms_p10'], row['step_ms'])
            self.assertAlmostEqual(row['tokens_per_s'] * row['step_ms'] / 1e3, row['batch'])
            self.assertEqual(row['power'], NO_POWER)
        self.assertEqual((bench['prompt_tokens'], bench['world'], bench['steps']), (16, 2, 5))
        self.expect_line(self.expect(program(*words), OK).out, r'^decode of [13]: [0-9.]+ ms \(p10 .*, p90 .*\), [0-9.]+ tokens/s; a prompt [0-9.]+ ms$', count=2)
        outcome = self.expect(program(*words, '--ops'), BAD_CONFIG)
        self.expect_line(outcome.err, '--decode times steps of a generator; --ops')
        outcome = self.expect(program('bench', config, '--decode', '4096'), BAD_CONFIG)
        self.expect_line(outcome.err, '--decode 4096: 4096 sequences of [0-9]+ tokens need 4096 slots')

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
            self.assertEqual(line['power'], NO_POWER)
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
        self.assertNotIn('joules', text)
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
