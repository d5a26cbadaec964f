"""Configurations that are wrong: every mistake at once, exit code 2, before a rank starts; and what `config` shows."""
import json
import unittest

from harness import BAD_CONFIG, DOES_NOT_FIT, OK, CliTest, millrace, program, raw_mpirun

MISTAKES = ['model.layers=0', 'model.ffm=64', 'optimizer.lr=fast', 'data.kind=txt', 'sharding.reshard=sometimes', 'memory.slots=1',
            'execution.peer_memory=on']
EXPECTED = [r'model\.layers = 0: must be an integer from 1 to', r'model\.ffm: unknown key; did you mean model\.ffn\?',
            r'optimizer\.lr = fast: must be a number', r'data\.kind = txt: must be one of text, tokens, synthetic; did you mean text\?',
            r'sharding\.reshard = sometimes: must be one of never, after_backward, after_forward, auto',
            r'memory\.slots = 1 .*only the allocators coloured, max_pool and fixed have slots', r'execution\.peer_memory = "on" .*this build has no CUDA; peer_memory can be off or auto']


def sets(*assignments):
    return [word for assignment in assignments for word in ('--set', assignment)]


class Config(CliTest):

    def expect_all_mistakes(self, outcome):
        self.expect(outcome, BAD_CONFIG)
        for pattern in EXPECTED:
            self.expect_line(outcome.err, pattern)
        self.expect_line(outcome.err, r'^millrace: \d+ problems in the configuration:$')
        self.assertEqual(outcome.out, '')

    def test_all_mistakes_are_listed_once_and_no_rank_starts(self):
        config, _ = self.config()
        def attempt(_):
            outcome = millrace('train', config, *sets(*MISTAKES), ranks=4)
            self.expect_all_mistakes(outcome)
            return outcome, outcome.seconds >= 2

        self.unless_late(attempt)
        self.expect_all_mistakes(program('train', config, *sets(*MISTAKES)))
        self.expect_all_mistakes(program('config', 'validate', config, *sets(*MISTAKES)))

    def test_without_the_launcher_rank_0_alone_lists_them(self):
        config, _ = self.config()
        self.expect_all_mistakes(raw_mpirun(4, 'train', config, *sets(*MISTAKES)))

    def test_a_mistake_in_a_file_is_shown_with_its_place(self):
        path = self.path('bad.json')
        with open(path, 'w') as f:
            f.write('{\n  "model": {"layers": 2,\n    "d_modell": 32},\n  "train": {"steps": "many"}\n}\n')
        outcome = self.expect(program('config', 'validate', path), BAD_CONFIG)
        self.expect_line(outcome.err, r'%s:3:\d+: model\.d_modell: unknown key; did you mean model\.d_model\?' % path)
        self.expect_line(outcome.err, r'%s:4:\d+: train\.steps = "many": must be an integer' % path)
        with open(path, 'w') as f:
            f.write('{"model": {')
        outcome = self.expect(millrace('train', path, ranks=2), BAD_CONFIG)
        self.expect_line(outcome.err, path)
        outcome = self.expect(millrace('train', self.path('none.json'), ranks=2), BAD_CONFIG)
        self.expect_line(outcome.err, 'none.json: cannot be read')

    def test_combinations_that_cannot_be_are_refused_with_a_sentence(self):
        config, run = self.config()
        for assignments, code, sentence in (
            (['memory.allocator=max_pool', 'memory.prefetch=2', 'memory.slots=2'], BAD_CONFIG, r'slots must be at least prefetch \+ 1'),
            (['memory.allocator=persistent', 'memory.slots=4'], BAD_CONFIG, 'only the allocators coloured, max_pool and fixed have slots'),
            (['sharding.grad_concat=last', 'sharding.grad_sync=every'], BAD_CONFIG, 'use grad_concat every or direct, or grad_sync last'),
            (['execution.backend=cuda'], BAD_CONFIG, 'this build has no CUDA'),
            (['parallel.shard=3'], BAD_CONFIG, r'shard \* replicate must be the world, 2 ranks'),
            (['parallel.replicate=2', 'parallel.shard=2'], BAD_CONFIG, r'shard \* replicate must be the world, 2 ranks'),
            (['parallel.replicate=3'], BAD_CONFIG, 'must divide the world, 2 ranks'),
            (['sharding.reshard=auto'], BAD_CONFIG, 'auto fills a budget, and needs one'),
            (['train.global_batch=7'], BAD_CONFIG, r'global_batch must be micro_batch \* accumulate \* world = 8'),
            (['model.heads=3'], BAD_CONFIG, 'd_model must be a multiple of heads'),
            (['model.rope_theta=500', 'model.family=gpt2'], BAD_CONFIG, 'gpt2 has learned positions'),
            (['memory.budget_gib=0.0005'], DOES_NOT_FIT, 'the plan needs [0-9]+ bytes per rank, memory.budget_gib allows 536870;'),
        ):
            with self.subTest(assignments):
                outcome = self.expect(millrace('train', config, *sets(*assignments), ranks=2), code)
                self.expect_line(outcome.err, sentence)
                self.assertEqual((outcome.out, run.metrics()), ('', []))

    def test_what_does_not_fit_is_said_once_without_the_launcher(self):
        config, _ = self.config()
        outcome = self.expect(raw_mpirun(4, 'train', config, *sets('memory.budget_gib=0.0005')), DOES_NOT_FIT)
        self.expect_line(outcome.err, 'the plan needs .* bytes per rank')

    def test_command_lines_that_are_wrong(self):
        config, _ = self.config()
        for words, sentence in (
            (['trian', config], 'trian: no such verb, did you mean train'),
            (['train'], 'config is required'),
            (['train', config, '--sett', 'a=b'], '--sett'),
            (['train', config, '--set'], '--set'),
            (['plan', config, '--machine', 'abacus'], 'abacus'),
            (['plan', config, '--world', '0'], '--world'),
            (['bench', config, '--steps', '0'], '--steps'),
            (['generate', config, '--prompt', ''], '--prompt is empty'),
            ([], 'subcommand is required'),
        ):
            with self.subTest(words):
                outcome = self.expect(program(*words), BAD_CONFIG)
                self.expect_line(outcome.err, sentence)
                self.assertEqual(outcome.out, '')

    def test_later_files_and_set_win_and_show_says_where_a_value_is_from(self):
        config, _ = self.config()
        over = self.path('over.json')
        with open(over, 'w') as f:
            json.dump({'train': {'steps': 17}, 'optimizer': {'lr': 0.5}}, f)
        show = ['config', 'show', config, over, *sets('optimizer.lr=0.25', 'run.dir=7')]
        values = json.loads(self.expect(program(*show, '--json'), OK).out)
        self.assertEqual(values['train']['steps'], 17)
        self.assertEqual(values['train']['micro_batch'], 2)
        self.assertEqual(values['optimizer']['lr'], 0.25)
        self.assertEqual(values['optimizer']['clip'], 1)
        self.assertEqual(values['run']['dir'], '7')  # typed by its key
        text = self.expect(program(*show), OK).out
        self.expect_line(text, r'train\.steps.*17.*over\.json')
        self.expect_line(text, r'train\.micro_batch.*2.*config\.json')
        self.expect_line(text, r'optimizer\.lr.*0\.25.*--set')
        self.expect_line(text, r'optimizer\.clip.*1.*default')

    def test_what_an_override_makes_idle_is_a_note(self):
        config, _ = self.config()  # a cosine schedule with min_lr
        constant = sets('optimizer.schedule.kind=constant')
        note = (r'note: optimizer\.schedule\.min_lr = 0\.001 \(%s:1:\d+\), optimizer\.schedule\.kind = "constant" '
                r'\(--set optimizer\.schedule\.kind=constant\): .* has no effect$' % config)
        outcome = self.expect(millrace('train', config, *constant, ranks=2), OK)
        self.expect_line(outcome.err, '^millrace: ' + note)  # by rank 0 alone
        self.expect_line(self.expect(millrace('config', 'show', config, *constant), OK).out, '^' + note)
        self.expect(millrace('train', config, *constant, *sets('optimizer.schedule.min_lr=1e-3')), BAD_CONFIG)
        # On one rank without a GPU: the same file serves elsewhere.
        outcome = self.expect(millrace('config', 'validate', config, '--world', '1', *sets('memory.prefetch=2', 'execution.tune=false')), OK)
        self.expect_line(outcome.err, r'^millrace: note: memory\.prefetch = 2 .* has no effect$')
        self.expect_line(outcome.err, r'^millrace: note: execution\.tune = false .* has no effect$')

    def test_show_has_the_notes_and_values_of_a_number_of_ranks(self):
        config, _ = self.config()
        show = ['config', 'show', config, *sets('memory.prefetch=2', 'precision.grad_wire=bf16')]
        for world, idle, shard in (((), 0, 'null'), (('--world', '1'), 1, '1'), (('--world', '2'), 0, '2')):
            with self.subTest(world):
                text = self.expect(program(*show, *world), OK).out
                for key in (r'memory\.prefetch', r'precision\.grad_wire'):
                    self.expect_line(text, '^note: %s = .* so %s has no effect$' % (key, key), count=idle)
                self.expect_line(text, r'^parallel\.shard +%s ' % shard)
        outcome = self.expect(program('config', 'show', config, '--world', '3', *sets('parallel.shard=2')), BAD_CONFIG)
        self.expect_line(outcome.err, 'must be the world, 3 ranks')

    def test_peers_memory_beyond_what_it_takes_is_refused_by_plan_as_by_train(self):
        config, _ = self.config()
        peers = sets('execution.backend=cuda', 'execution.peer_memory=on')
        refused = (r'execution\.peer_memory = "on" \(--set execution\.peer_memory=on\), parallel\.shard = null \(default\), parallel\.replicate = 1 '
                   r'\(default\): peers\' memory takes from 2 to 8 GPUs to a copy of the parameters, not 16; with more, peer_memory can be off or auto, '
                   r'or parallel\.shard smaller$')
        for outcome in (program('plan', config, '--world', '16', *peers), millrace('train', config, *peers, ranks=16)):
            self.expect_line(self.expect(outcome, BAD_CONFIG).err, refused)
        self.expect(program('plan', config, '--world', '16', *peers, *sets('parallel.replicate=2')), OK)
        outcome = self.expect(program('plan', config, '--world', '8', '--ranks-per-host', '4', *peers), BAD_CONFIG)
        self.expect_line(outcome.err, r'execution\.peer_memory = on: rank 7 is on another host than rank 0 .*; `on` needs GPUs of one host')

    def test_schema_and_documentation_have_every_key(self):
        schema = json.loads(self.expect(program('config', 'schema'), OK).out)
        config, _ = self.config()
        values = json.loads(self.expect(program('config', 'show', config, '--json'), OK).out)
        for section, keys in values.items():
            for key in keys:
                self.assertIn(key, schema['properties'][section]['properties'], section)
        documentation = self.expect(program('config', 'docs'), OK).out
        self.assertIn('`micro_batch`', documentation)
        self.assertEqual(self.expect(program('config', 'validate', config, '--world', 2), OK).out, 'valid\n')
        self.expect(program('config', 'validate', config, '--world', 3, *sets('parallel.shard=2')), BAD_CONFIG)


if __name__ == '__main__':
    unittest.main(verbosity=2)
