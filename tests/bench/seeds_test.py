"""tools/bench/seeds.py and what it is made of: rows, their file, verdicts, the page."""
import concurrent.futures
import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path('tools/bench').resolve()
sys.path.insert(0, str(BENCH))
import results
import runs
import seed_groups
import seed_page
import seeds
import tables

PROGRAM = os.path.abspath('tools/cli/millrace_cpu')
FACTS = ('seeds_cpu', 'abc', 'a machine', 'a command')

# Stands for the program on GPUs: says what it was asked, and results by variant.
FAKE = """#!/usr/bin/env python3
import json, os, sys
words = sys.argv[1:]
if words[0] == "config":
    if any("in_gather" in w for w in words):
        print("millrace: 1 problem in the configuration:\\n  --set x: sharding.downcast = in_gather: must be one of a, b", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)
if words[0] == "plan":
    classes = {k: 1 << 30 for k in ("parameters", "slots", "gradients", "activations")}
    print(json.dumps(dict(memory=dict(bytes_per_rank=classes, bytes_at_peak=classes, parameter_pool_bytes=0, gradient_pool_bytes=0, arena_bytes=4 << 30,
                                      lower_bound_bytes=1))))
    sys.exit(0)
if "sharding.downcast=after_update" in words:
    print("millrace: out of memory", file=sys.stderr)
    sys.exit(1)
slow = 2.0 if "sharding.downcast=after_gather" in words else 1.0
if "--trace" in words:
    with open(words[words.index("--trace") + 1], "w") as file:
        spans = [dict(ph="X", pid=p, cat="all_gather", dur=d) for p, d in ((0, 3.0), (0, 4.0), (1, 100.0))]
        json.dump(dict(traceEvents=spans + [dict(ph="M", pid=0)]), file)
line = dict(step_ms_samples=[slow + i / 100 for i in range(10)], host_us_samples=[5.0], gathered_bytes_per_step=1 << 20, reduced_bytes_per_step=0,
            cast_bytes_per_step=0, concatenated_bytes_per_step=0, arena_bytes=4 << 30, peak_bytes=5 << 30, graph="step", graph_nodes=7, peer_memory=False,
            device=os.environ.get("FAKE_DEVICE", "gpu"), world=1, p2p=os.environ.get("NCCL_P2P_DISABLE"))
print(json.dumps(line))
"""


# Stands for a Python that runs the scripts for GPUs: keeps what it was asked for, and does what they need of it beside that.
FAKE_PYTHON = """#!/bin/bash
[[ ! $FAILS || $2 != -c || $* != *"$FAILS"* ]] || {{ echo "it cannot import" >&2; exit 1; }}
shift
[[ $1 != -c ]] || exec {python} -B "$@"
script=${{1##*/}}
shift
echo "$script" "$@" >>{asked}
[[ $script != "${{SAYS%% *}}" ]] || echo "${{SAYS#* }}"
[[ $script != "$FAILS" ]] || {{ echo "it is broken" >&2; exit 7; }}
echo done
"""


def device(*arguments, **env):
    return subprocess.run(['bash', str(BENCH / 'device.sh'), *arguments], env={**os.environ, 'SAYS': '', 'FAILS': '', **env}, capture_output=True, text=True, timeout=60)


def with_module(folder):
    """A PYTHONPATH where `millrace` can be found."""
    os.makedirs(os.path.join(folder, 'modules', 'millrace'))
    return os.path.join(folder, 'modules')


def run(*arguments, env=None):
    command = [sys.executable, '-B', str(BENCH / 'seeds.py'), *arguments]
    return subprocess.run(command, env=dict(os.environ, **(env or {})), capture_output=True, text=True, timeout=280)


def rows_of(folder, name):
    return {row['id']: row for row in results.load(pathlib.Path(folder) / f'seeds_{name}.json')['rows']}


class OnTheCpu(unittest.TestCase):
    """The whole of `seeds.py --cpu`, once."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.command = ('--cpu', '--binary', PROGRAM, '--out', cls.folder.name, '--earlier', cls.folder.name, '--commit', 'abc')
        done = run(*cls.command)
        cls.said, cls.code = done.stderr, done.returncode
        cls.rows = rows_of(cls.folder.name, 'cpu')

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def counters(self, group, variant):
        return self.rows[f'{group}/{variant}/1']['result']['counters_per_step']

    def test_every_row_has_a_result_or_the_programs_refusal(self):
        self.assertEqual(self.code, 0, self.said)
        expected = [f'{g.name}/{v}/1' for g in seed_groups.on_cpu() for v in g.variants]
        self.assertEqual(list(self.rows), expected)
        for row in self.rows.values():
            self.assertTrue('result' in row or row['error'].startswith(results.REFUSED), row)

    def test_commands_are_as_typed_anywhere(self):
        for row in self.rows.values():
            self.assertNotRegex(row['command'], r'(^|[\s=])/', row)
        self.assertTrue(any(' run.dir=WORK/run' in row['command'] for row in self.rows.values()))
        typed = runs.as_typed([sys.executable, str(runs.ROOT / 'tools/bench/runs.py'), '/elsewhere/bin/millrace', '--set', 'run.dir=/w/a/b', 'x=1', '/x/text.txt', 'a b'], '/w/a')
        self.assertEqual(typed, "python3 tools/bench/runs.py bin/millrace --set run.dir=WORK/b x=1 text.txt 'a b'")

    def test_a_cast_before_the_gather_halves_what_is_sent_and_what_is_kept(self):
        before, after = self.counters('downcast', 'per_gather'), self.counters('downcast', 'after_gather')
        statistics = after['bytes_gathered'] - 2 * before['bytes_gathered']  # f64 in both
        self.assertTrue(-256 < statistics <= 0, statistics)
        self.assertEqual(after['bytes_cast'], 2 * before['bytes_cast'])
        slots = {v: self.rows[f'downcast/{v}/1']['result']['plan']['bytes_per_rank']['slots'] for v in ('after_gather', 'per_gather')}
        self.assertGreater(slots['after_gather'], 1.5 * slots['per_gather'])
        self.assertGreater(self.rows['downcast/after_gather/1']['result']['arena_bytes'], self.rows['downcast/per_gather/1']['result']['arena_bytes'])

    def test_concatenated_bytes_are_of_every_microbatch_of_one_or_of_none(self):
        every, last, direct = (self.counters('concat', v)['bytes_concatenated'] for v in ('every', 'last', 'direct'))
        self.assertGreater(last, 0)
        self.assertEqual((every, direct), (128 * last, 0))

    def test_no_variant_changes_a_bit(self):
        for group in seed_groups.on_cpu():
            if 'bits' in group.columns and group.seed != 'options':
                seen = {v: self.rows[f'{group.name}/{v}/1']['result']['bits'] for v in group.variants if 'result' in self.rows[f'{group.name}/{v}/1']}
                self.assertLessEqual(len({tuple(bits) for bits in seen.values()}), 1, (group.name, seen))
        # And bits that differ would be seen: another order of sums has others, and no other option has.
        bits = {v: self.rows[f'options/{v}/1']['result']['bits'] for v in seed_groups.OPTIONS}
        base = next(iter(bits.values()))
        self.assertEqual({v for v, found in bits.items() if found != base}, {'sync every', 'concat every, sync every'})

    def test_rows_that_are_there_are_not_run_again(self):
        before = dict(self.rows)
        again = run(*self.command)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(again.stderr.splitlines()[:-1], [])
        self.assertEqual(rows_of(self.folder.name, 'cpu'), before)

    def test_the_page_has_the_figures(self):
        page = seed_page.made(pathlib.Path(self.folder.name))
        every = self.counters('concat', 'every')['bytes_concatenated'] / 2**20
        self.assertIn(f'| every | ', page)
        self.assertIn(f' {every:.2f} |', page)
        self.assertEqual(page.count('**differ**'), 2)  # of `sync every`
        broken = copy.deepcopy(results.load(pathlib.Path(self.folder.name) / 'seeds_cpu.json'))
        next(row for row in broken['rows'] if row['id'] == 'concat/direct/1')['result']['bits'][1] = '0'
        self.assertEqual(seed_page.markdown(broken, {}).count('**differ**'), 3)
        # What a run allocates is what was planned, or the page says so.
        self.assertEqual((page.count('| yes |'), page.count('**no**')), (6, 0))
        next(row for row in broken['rows'] if row['id'] == 'allocators on a hybrid/max_pool/1')['result']['arena_bytes'] += 256
        self.assertEqual(seed_page.markdown(broken, {}).count('**no**'), 1)

    def test_packed_pools_of_the_published_stacks_meet_their_bound(self):
        for variant in seed_groups.HYBRID_POOLS:
            result = self.rows[f'hybrid pools/{variant}/1']['result']
            packed, bound = result['allocators']['packed'], result['lower_bound']
            self.assertEqual(packed['parameter_pool_bytes'], bound['parameter_pool_bytes'], variant)
            self.assertLess(packed['arena_bytes'], 1.01 * bound['arena_bytes'], variant)


class OnDevices(unittest.TestCase):
    def test_a_group_for_another_number_of_ranks_is_left_out(self):
        def groups(ranks):
            return {line.split('/')[0] for line in run('--device', 'any', '--ranks', ranks, '--list').stdout.splitlines()}
        one, two, four = groups('1'), groups('2'), groups('4')
        self.assertEqual(one - two, {'nemotron_h_1b on 1', "one GPU at Llama 8B's width", 'profile of a short step'})
        on_two = {'nemotron_h_1b on 2', 'qwen3_moe_8l on 2', 'concat in FP8', 'Muon', *(f'FP8 of {of} on 2' for of in ('Llama 1B B 4', 'GPT-2 124M B 4', 'GPT-2 30M B 4')),
                  *(f'{which}FP8 beside torchao {of}' for which in ('', 'other ') for of in ('Llama 1B B 8', "eight layers at Llama 8B's width"))}
        self.assertEqual(two - one, on_two)
        on_four = {line.split('/')[0] for line in run('--device', 'any', '--ranks', '4', '--own', '--list').stdout.splitlines()}
        self.assertEqual(on_four, four - two)
        self.assertEqual(on_four, {g.name for g in seed_groups.on_four_gpus()})
        self.assertIn('allocators on a hybrid', one & two)

    def test_todays_program_plans_every_row(self):
        def refusal(ranks, group, variant):
            sets = [word for item in group.common + group.variants[variant] + ['execution.backend=cuda'] for word in ('--set', item)]
            done = subprocess.run([PROGRAM, 'plan', 'configs/' + group.config, '--world', str(ranks), *sets], capture_output=True, text=True)
            return f'{group.name}/{variant}: {done.stderr}' if done.returncode else None
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            rows = [(g.ranks or 2, g, v) for g in seed_groups.on_devices() for v in g.variants]
            self.assertEqual([said for said in pool.map(lambda row: refusal(*row), rows) if said], [])

    def test_rounds_are_interleaved_and_a_budget_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = os.path.join(folder, 'fake')
            with open(fake, 'w') as file:
                file.write(FAKE)
            os.chmod(fake, 0o755)
            common = ('--device', 'h200-x2', '--ranks', '1', '--binary', fake, '--out', folder, '--earlier', folder)
            none = run(*common, '--budget-s', '0')
            self.assertEqual((none.returncode, rows_of(folder, 'h200-x2')), (0, {}), none.stderr)
            self.assertIn('downcast over NVLink/after_gather/1: not begun, the budget of 0 s is spent', none.stderr)
            some = run(*common, '--groups', 'downcast,graphs')
            rows = rows_of(folder, 'h200-x2')
            page = seed_page.made(pathlib.Path(folder))
            on_cpu = run(*common[:-3], os.path.join(folder, 'other'), '--earlier', os.path.join(folder, 'other'), '--groups', 'downcast over', env={'FAKE_DEVICE': 'cpu'})
        self.assertEqual(some.returncode, 1, some.stderr)  # after_update failed, and not for an option
        variants = ['after_gather', 'per_gather', 'after_update', 'in_gather']
        self.assertEqual(list(rows)[:8], [f'downcast over NVLink/{v}/{r}' for r in (1, 2) for v in variants])
        self.assertEqual(rows['downcast over NVLink/in_gather/1']['error'],
                         f'{results.REFUSED}: exit code 2: sharding.downcast = in_gather: must be one of a, b')
        self.assertIn('out of memory', rows['downcast over NVLink/after_update/1']['error'])
        self.assertEqual(rows['graphs GPT-2 124M B 4/off/1']['result']['trace_us'], {'all_gather': 7.0})  # rank 0's
        # Both rounds' samples, and a ratio where the intervals lie apart.
        self.assertIn('| per_gather | 1.05 (1.01, 1.08) | 1.952x faster |', page)
        self.assertIn('| step | 1.05 (1.01, 1.08) | within spread |', page)
        self.assertIn('downcast over NVLink/after_gather/1: it ran on the CPU', on_cpu.stderr)

    def test_what_is_not_understood_is_a_row(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, 'program')
            with open(program, 'w') as file:
                file.write('#!/bin/sh\necho no JSON\n')
            os.chmod(program, 0o755)
            done = run('--device', 'x', '--ranks', '1', '--binary', program, '--out', folder, '--earlier', folder, '--groups', 'synchronisations')
            rows = rows_of(folder, 'x')
        self.assertEqual((done.returncode, len(rows)), (1, 4), done.stderr)
        for row in rows.values():
            self.assertIn('not understood: JSONDecodeError', row['error'])

    def test_the_script_for_gpus_keeps_to_its_time(self):
        with tempfile.TemporaryDirectory() as folder:
            modules = with_module(folder)
            for gpus, stages in (('1', 33), ('2', 13), ('4', 7)):  # each that has a file of its own counts
                done = device(os.path.join(folder, 'out'), '0', GPUS=gpus, PYTHONPATH=modules)
                self.assertEqual((done.returncode, done.stdout.count('the time is up')), (3, stages), done)
            for arguments, env, said in (((), {}, 'OUT'), ((folder, 'x'), {}, "not 'x'"), ((folder, '0', '/no/wheel'), {}, 'no file /no/wheel'),
                                         ((folder, '0'), {'STAGES': 'seeds tiny'}, "no stage 'tiny' on 2 GPUs"),
                                         ((folder, '0'), {'STAGES': 'seeds', 'GPUS': '1'}, "no stage 'seeds' on 1 GPUs"),
                                         ((folder, '0'), {'STAGES': 'seeds', 'GPUS': '4'}, "no stage 'seeds' on 4 GPUs"), ((folder, '0'), {'GPUS': '3'}, "GPUS is 1, 2 or 4, not '3'")):
                wrong = device(*arguments, **{'GPUS': '2', **env})
                self.assertEqual(wrong.returncode, 2, wrong)
                self.assertIn(said, wrong.stderr)

    def test_the_script_for_gpus_goes_on_where_it_was(self):
        with tempfile.TemporaryDirectory() as folder:
            python, asked = os.path.join(folder, 'python'), os.path.join(folder, 'asked')
            with open(python, 'w') as file:
                file.write(FAKE_PYTHON.format(python=sys.executable, asked=asked))
            os.chmod(python, 0o755)

            def call(**env):
                """(exit code, which scripts ran with what, standard output)."""
                done = device(os.path.join(folder, 'out'), '300', PYTHON=python, GPUS='1', STAGES='one decode generate documents', **env)
                with open(asked) as file:
                    lines = file.read().splitlines()
                os.remove(asked)
                return done.returncode, lines, done.stdout
            code, lines, said = call(SAYS='decode_gpu.py llama_8b: no time left for it', ONLY='profile')
            families = ['gpt2', 'llama', 'llama_window', 'qwen3', 'qwen3_moe', 'nemotron_h', 'nemotron_h_odd']
            self.assertEqual([line.split()[0] for line in lines], ['seeds.py', 'decode_gpu.py', *['generate_gpu.py'] * 14, 'documents_gpu.py'], said)
            self.assertEqual(code, 3, said)
            self.assertIn('seeds.py --device h200-x1 --ranks 1 --groups profile --own --out ', lines[0])
            self.assertEqual([line.split()[-3:] for line in lines[2:16]], [[family, '--precision', of] for family in families for of in ('fp32', 'bf16')])
            # What prints one result and has done so does not run again; what has rows is asked, and knows itself.
            code, lines, said = call(FAILS='decode_gpu.py')
            self.assertEqual(([line.split()[0] for line in lines], code), (['seeds.py', 'decode_gpu.py'], 1), said)
            self.assertRegex(lines[1], r' --budget-s (29\d|300)$')
            os.remove(os.path.join(folder, 'out', 'generate_qwen3_bf16_h200-x1.txt'))
            code, lines, said = call(FAILS='generate_gpu.py')
            self.assertEqual((len(lines), lines[2].split()[-3:], code), (3, ['qwen3', '--precision', 'bf16'], 1), said)
            self.assertIn('generate_qwen3_bf16_h200-x1.txt: exit code 7: it is broken', said)
            code, lines, said = call()
            self.assertEqual((len(lines), code, said.splitlines()[-1]), (3, 0, 'nothing is left'))
            # The sanitizers' own exit code of rows that are left is no failure.
            done = device(os.path.join(folder, 'out'), '15', PYTHON=python, GPUS='1', STAGES='sanitize')
            self.assertEqual((done.returncode, 'rows are left: call again' in done.stdout), (3, True), done)

    def test_the_script_for_gpus_says_what_did_not_run(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ('python', 'bin/mpirun', 'bin/nvidia-smi', 'bin/bash'):
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, 'w') as file:
                    file.write(FAKE_PYTHON.format(python=sys.executable, asked='/dev/null') if name == 'python' else '#!/bin/sh\necho done\n')
                os.chmod(path, 0o755)
            modules, path = with_module(folder), os.path.join(folder, 'bin') + ':' + os.environ['PATH']

            def call(gpus='1', **env):
                """(exit code, the last line of standard output, the lines ahead of it)."""
                done = subprocess.run(['/bin/bash', str(BENCH / 'device.sh'), os.path.join(folder, 'out'), '300'], capture_output=True, text=True, timeout=60,
                                      env={**os.environ, 'PATH': path, 'PYTHON': os.path.join(folder, 'python'), 'SAYS': '', 'FAILS': '', 'GPUS': gpus, **env})
                *ahead, last = done.stdout.splitlines()
                return done.returncode, last, '\n'.join(ahead)
            # What cannot run here is no failure, unless it was asked for.
            no_module, no_program = f'grpo ({folder}/python has no millrace, which our wheel brings)', 'gate (no program to compare with, OLD is not set)'
            but = 'nothing is left but what cannot run here: '
            self.assertEqual(call()[:2], (0, f'{but}{no_module}, {no_program}'))
            self.assertEqual(call(gpus='4')[:2], (0, but + no_program))
            self.assertEqual(call(PYTHONPATH=modules)[:2], (0, but + no_program))
            self.assertEqual(call(PYTHONPATH=modules, OLD='an/old/program')[:2], (0, 'nothing is left'))
            for stages in ('grpo', 'gate', 'documents gate'):
                code, last, _ = call(STAGES=stages)
                self.assertEqual((code, 'cannot run here: ' in last, 'nothing is left' in last), (1, True, False), last)
            # Cases that cannot be had are no empty list, which would be done at once.
            for env, said in (({'PYTHON': '/no/python'}, '/no/python: No such file'), ({'FAILS': '_gpu'}, 'it cannot import')):
                for stage in ('generate', 'grpo'):
                    code, last, _ = call(STAGES=stage, PYTHONPATH=modules, **env)
                    self.assertEqual((code, last.startswith(f'{stage}: '), said in last), (1, True, True), last)
                code, last, ahead = call(PYTHONPATH=modules, **env)
                self.assertEqual((code, 'generate: ' in ahead, 'nothing is left' in last), (1, True, False), ahead)

    def test_arguments_that_cannot_be_are_refused(self):
        for wrong, said in (((), '--cpu and --device'), (('--cpu', '--device', 'x'), '--cpu and --device'), (('--cpu', '--groups', 'nix'), "begins with 'nix'"),
                            (('--cpu', '--ranks', '0'), '--ranks: 0')):
            done = run(*wrong)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stderr)


class Files(unittest.TestCase):
    def test_rows_of_another_commit_or_machine_are_not_mixed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'seeds_cpu.json')
            results.Results(path, *FACTS).add('g', 'v', 1, 'a', 'c', 1.0, result={})
            self.assertTrue(results.Results(path, *FACTS).has('g/v/1', 'a'))
            for place in range(3):
                facts = [*FACTS]
                facts[place] = 'another'
                self.assertFalse(results.Results(path, *facts).has('g/v/1', 'a'))
            self.assertFalse(results.Results(path, *FACTS).has('g/v/1', 'something else'))
            for vague in ('abc-dirty', 'unknown'):
                results.Results(path, FACTS[0], vague, *FACTS[2:]).add('g', 'v', 1, 'a', 'c', 1.0, result={})
                self.assertFalse(results.Results(path, FACTS[0], vague, *FACTS[2:]).has('g/v/1', 'a'))
            results.Results(path, *FACTS).add('g', 'v', 1, 'a', 'c', 1.0, result={})
            other = os.path.join(folder, 'other', 'seeds_cpu.json')
            self.assertTrue(results.Results(other, *FACTS, earlier=path).has('g/v/1', 'a'))

    def test_a_file_that_cannot_be_is_refused_by_name(self):
        row = dict(id='g/v/1', group='g', variant='v', round=1, asked='a', command='c', date='d', seconds=1.0, result={})
        good = dict(schema=1, name='n', commit='c', machine='m', command='c', rows=[row])
        self.assertIs(results.check(good, 'f'), good)
        for wrong, said in ((dict(good, schema=2), 'f: schema is 2; 1 is allowed'), (dict(good, commit=None), 'f: commit is None; str is allowed'),
                            (dict(good, rows=[row, row]), "a second time"), (dict(good, rows=[dict(row, error='e')]), 'either a result or an error'),
                            (dict(good, rows=[dict(row, round='1')]), r"rows\[0\].round is '1'; int is allowed")):
            with self.assertRaisesRegex(ValueError, said):
                results.check(wrong, 'f')

    def test_a_row_is_expected_to_take_what_its_variant_took(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = results.Results(pathlib.Path(folder) / 'seeds.json', 'seeds', 'abc', 'machine', 'command')
            for group, variant, round_, seconds in (('g', 'ours', 1, 14.0), ('g', 'ours', 2, 12.0), ('g', 'peer', 1, 45.0), ('h', 'ours', 1, 99.0)):
                kept.add(group, variant, round_, 'asked', 'command', seconds, result={})
            self.assertEqual([kept.seconds_of('g', v) for v in ('ours', 'peer', 'new')] + [kept.seconds_of('i', 'ours')], [14.0, 45.0, 45.0, None])

    def test_nothing_is_claimed_while_intervals_touch(self):
        low, high = [1.0] * 9 + [5.0], [1.5] * 10
        self.assertEqual(results.verdict(high, low), '1.500x slower')  # p90 is the ninth of ten
        self.assertEqual(results.verdict(low, high), '1.500x faster')
        wide = [1.0] * 8 + [1.5] * 2
        self.assertEqual(results.verdict(high, wide), 'within spread')
        self.assertEqual(results.verdict(wide, high), 'within spread')
        self.assertEqual(results.spread(list(range(11))), (5, 1, 9))

    def test_the_samples_of_all_rounds_are_taken_together(self):
        rows = [dict(result=dict(step_ms_samples=[value] * 3)) for value in (1.0, 2.0)]
        self.assertEqual(seed_page.COLUMNS['step'][1](rows, None), '2.00 (1.00, 2.00)')
        self.assertEqual(seed_page.COLUMNS['verdict'][1](rows, [dict(result=dict(step_ms_samples=[2.5]))]), '1.250x faster')

    def test_a_peer_has_no_cell_of_what_it_does_not_count(self):
        group = next(g for g in seed_groups.on_devices() if g.name == 'FP8 beside torchao Llama 1B B 8')
        ours = [dict(variant=v, result=dict(step_ms_samples=[2.0 + i] * 3, gathered_bytes_per_step=3 << 20, peak_bytes=1 << 30)) for i, v in enumerate(group.variants)]
        peer = dict(variant='torchao, kept', result=dict(step_ms_samples=[4.0] * 3, peak_bytes=2 << 30))
        text = seed_page.group_text(group, [*ours, peer])
        self.assertIn('| fp8_tensor | 3.00 (3.00, 3.00) | 1.500x slower | 3.00 | 1.00 |', text)
        self.assertIn('| torchao, kept | 4.00 (4.00, 4.00) | 2.000x slower |  | 2.00 |', text)

    def test_a_profile_has_the_kinds_of_all_variants(self):
        def row(variant, round_, times, **us):
            return dict(id=f'{variant}{round_}', group='profile of a short step', variant=variant, result=dict(step_ms_samples=times, trace_us=us))
        group = next(g for g in seed_groups.on_devices() if g.name == 'profile of a short step')
        rows = [row('off', 1, [3.0] * 3, matmul=9.0, cast=40.0), row('off', 2, [3.0] * 3, matmul=11.0, cast=50.0),
                row('step', 1, [2.0] * 3, matmul=10.0, adamw=8.0)]
        text = seed_page.group_text(group, rows)
        self.assertEqual(text[2:8], ['| op | off | step |', '|---|--:|--:|', '| cast | 50 |  |', '| matmul | 11 | 10 |', '| adamw |  | 8 |',
                                     '| all | 61 | 18 |'])
        self.assertIn('| the step, ms (p10, p90) | 3.00 (3.00, 3.00) | 2.00 (2.00, 2.00) |', text)

    def test_a_table_is_of_the_file_that_has_most_of_it(self):
        def file(date, **groups):
            rows = [dict(id=f'{g}/{i}', group=g, date=date, **(dict(result={}) if i < n else dict(error='no'))) for g, n in groups.items() for i in range(4)]
            return dict(rows=rows)
        groups = [g for g in seed_groups.on_devices() if g.name in ('short sequences', 'graph beside op by op', 'synchronisations', 'nemotron_h_1b on 1')]
        devices = {'old': file('1', **{'short sequences': 2, 'graph beside op by op': 4}), 'new': file('2', **{'short sequences': 2, 'graph beside op by op': 3}),
                   'one card': file('3', **{'nemotron_h_1b on 1': 1})}
        chosen = {name: [g.name for g in found] for name, found in seed_page.whole_first(devices, groups).items()}
        # What nobody has measured is no matter of a file about one card alone, though it is the newest.
        self.assertEqual(chosen, {'old': ['graph beside op by op'], 'new': ['short sequences', 'synchronisations'], 'one card': ['nemotron_h_1b on 1']})

    def test_a_failed_row_is_run_again_and_a_refused_one_is_not(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = results.Results(pathlib.Path(folder) / 'seeds.json', 'seeds', 'abc', 'machine', 'command')
            for variant, more in (('fine', dict(result={})), ('broke', dict(error='exit code 1: it broke')), ('refused', dict(error=results.REFUSED + ': no'))):
                kept.add('g', variant, 1, 'asked', 'command', 1.0, **more)
            self.assertEqual([kept.has(f'g/{v}/1', 'asked') for v in ('fine', 'broke', 'refused')], [True, False, True])
            self.assertFalse(kept.has('g/fine/1', 'asked for something else'))
            self.assertEqual([row['variant'] for row in kept.data['rows']], ['refused'])

    def test_the_page_is_what_the_json_gives(self):
        self.assertEqual(seed_page.PAGE.read_text(), seed_page.made(BENCH / 'results'), 'python3 -B tools/bench/seeds.py --page')

    def test_the_readme_is_what_the_json_gives(self):
        self.assertEqual(tables.README.read_text(), tables.whole(tables.README.read_text()), 'python3 -B tools/bench/tables.py')
        self.assertEqual(subprocess.run([sys.executable, '-B', str(BENCH / 'tables.py'), '--check']).returncode, 0)
        with self.assertRaisesRegex(ValueError, 'the marks'):
            tables.whole('a page without marks')

    def test_each_part_of_the_readme_follows_its_samples(self):
        def slower_step(data):
            data['cases'][0]['decode'][0]['step_ms_samples'] = [2 * ms for ms in data['cases'][0]['decode'][0]['step_ms_samples']]

        def faster_peer(data):
            data['calls'][0]['torch'][0]['forward_tflops'] = 1188.6

        def slower_program(data):
            data['cases'] = {case: [[old, [2 * ms for ms in new]] for old, new in rounds] for case, rounds in data['cases'].items()}
        def clean(data):
            for row in data['rows']:
                row['ours'] = {}
        def slower_forward(data):
            data['prompts'][0]['forward_ms_samples'] = [2 * ms for ms in data['prompts'][0]['forward_ms_samples']]
        def slower_products(data):
            data['ops']['GPT-2 124M, B 64 fp8_tensor']['matmul'] *= 2
        def slower_norm(data):
            data['rows'][0]['us'] *= 2
        def lower_loss(data):
            next(row for row in data['rows'] if row['id'] == 'gpt2_124m/fp8_tensor/1')['result']['last_mean'] -= 0.04
        def other_bits(data):
            data['rows'][-1]['verdict'] = 'differ from step 3'
        now = tables.README.read_text()
        for file, change, was, said in (('decode_h200', slower_step, '| gpt2_124m | 1 | 3,887 | 0.257 ', '| gpt2_124m | 1 | 1,943 | 0.515 '),
                                        ('prefill_h100', slower_forward, ' | 45.59 | 1.10 |', ' | 91.19 | 2.20 |'),
                                        ('hybrids_h200', faster_peer, '| 128, even | 594 | 459 | 1.29 |', '| 128, even | 594 | 1189 | 0.50 |'),
                                        ('step_gate_h200-x2', slower_program, ' | 1.0007 | ', ' | 2.0013 | '),
                                        ('sanitizers_h200', clean, '| mamba_test | 0 | 10 | 0 | 0 |', '| mamba_test | 0 | 0 | 0 | 0 |'),
                                        ('fp8_h100', slower_products, ' | 0.997 | 57.1 | ', ' | 0.997 | 114.2 | '),
                                        ('long_runs_h100', lower_loss, '1: 1.2667, ', '1: 1.2267, '),
                                        ('rows_h100', slower_norm, '65536 x 768 | 75.8 | 270.9 |', '65536 x 768 | 151.6 | 270.9 |'),
                                        ('bitwise_h100', other_bits, '| recompute block | same | 10.891841 |', '| recompute block | differ from step 3 | 10.891841 |')):
            with self.subTest(file), tempfile.TemporaryDirectory() as folder:
                shutil.copytree(BENCH / 'results', folder, dirs_exist_ok=True)
                path = pathlib.Path(folder) / (file + '.json')
                data = json.loads(path.read_text())
                change(data)
                path.write_text(json.dumps(data))
                page = tables.whole(now, pathlib.Path(folder))
                self.assertEqual([now.count(was), page.count(was), page.count(said)], [1, 0, 1])
        for name in tables.PARTS:
            for mark in tables.marks(name):
                with self.assertRaisesRegex(ValueError, 'the marks'):
                    tables.whole(now.replace(mark, ''))
                with self.assertRaisesRegex(ValueError, 'the marks'):
                    tables.whole(now + mark)

    def test_a_case_beside_its_peers(self):
        def row(variant, times, round_=1, ok=True, **raw):
            return dict(variant=variant, sdpa=None if variant.startswith('millrace') else 'cudnn', round=round_, ok=ok, step_ms=times, host_us=50.0,
                        working_bytes=2 << 30, raw=dict(graph_nodes=9, **raw))
        ours = [row('millrace', [10.0] * 5, floor_ms=8.0, rate_floor_ms=5.0), row('millrace', [11.0] * 5, 2)]
        runs = [*ours, row('fsdp2', [15.0] * 5), row('fsdp2_keep', [13.0] * 5), row('mfsdp', [], ok=False), row('millrace deterministic', [12.0])]
        self.assertEqual(tables.of_case(runs), ['11.00 (10.00, 11.00)', '12.00', 'fsdp2_keep (cudnn) 13.00 (13.00, 13.00)',
                                                'fsdp2 (cudnn) 15.00, mfsdp (cudnn): no result', '1.18', '1.38', '2.20', '2.00 / 2.00', '50 / 9'])
        # A peer inside the spread is not beaten.
        self.assertEqual(tables.of_case([*ours, row('fsdp2', [10.9] * 5)])[4], 'within spread')

    def test_a_peer_is_asked_for_what_its_script_has(self):
        common = (BENCH / 'peers' / 'torch_bench.py').read_text()
        for group in seed_groups.on_devices():
            text = common + (BENCH / 'peers' / group.peer).read_text() if group.peers else ''
            for name, words in group.peers.items():
                for flag, value in zip(words, [*words[1:], '']):
                    if flag.startswith('--'):
                        self.assertIn(f'"{flag}"', text, (group.name, name))
                    if flag in ('--variant', '--recipe', '--sdpa'):
                        self.assertIn(f'"{value}"', text, (group.name, name))
        # And beside torchao both train the same model on the same batch.
        for group in seed_groups.beside_torchao():
            for name, words in group.peers.items():
                self.assertEqual([value for flag, value in zip(words, words[1:]) if flag == '--set'], group.common, (group.name, name))

    def test_every_column_and_option_of_a_group_exists(self):
        for groups in (seed_groups.on_cpu(), seed_groups.on_devices()):
            self.assertEqual(len({g.name for g in groups}), len(groups))
            for group in groups:
                self.assertIn(group.seed, seed_groups.SEEDS)
                self.assertTrue(hasattr(seeds.Rows, group.verb))
                if group.columns != ['profile'] and (not group.columns[0].startswith('update') or group.columns[0] == 'update_in_step'):
                    self.assertLessEqual(set(group.columns), set(seed_page.COLUMNS), group.name)


if __name__ == '__main__':
    unittest.main()
