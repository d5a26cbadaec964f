"""From text to a tokenizer, token files, a run with both, and an export: tokenize, detokenize, tokenizer train, data.tokenizer."""
import gzip
import json
import os
import unittest

from harness import BAD_CONFIG, BAD_DATA, OK, CliTest, files_of, program


class Tokenize(CliTest):

    def made(self):
        """A tokenizer of 320 tokens, trained on the text that it then makes tokens of."""
        text = self.text_data()
        with open(text, encoding='utf-8') as f:
            lines = f.read().splitlines()
        with gzip.open(self.path('lines.jsonl.gz'), 'wt') as f:
            f.write(''.join(json.dumps({'body': line}) + '\n' for line in lines))
        tokenizer, tokens = self.path('tokenizer.json'), self.path('tokens')
        self.expect(program('tokenizer', 'train', '--vocab', '320', '--out', tokenizer, text), OK)
        made = self.expect(program('tokenize', '--tokenizer', tokenizer, '--out', tokens, '--field', 'body', '--threads', '2', text,
                                   self.path('lines.jsonl.gz')), OK)
        self.expect_line(made.out, r'^\d+ tokens of 401 documents .* in 1 file of')
        return text, tokenizer, tokens

    def config_of(self, tokenizer, tokens, vocab=320):
        return self.config(data={'kind': 'tokens', 'path': tokens, 'tokenizer': tokenizer}, model={'vocab': vocab}, train={'steps': 2})

    def test_text_comes_back_from_its_tokens(self):
        text, tokenizer, tokens = self.made()
        with open(text, encoding='utf-8') as f:
            content = f.read()
        back = self.expect(program('detokenize', '--tokenizer', tokenizer, '--skip-special', tokens), OK)
        self.assertEqual(back.out, content + content.replace('\n', ''))
        separated = self.expect(program('detokenize', '--tokenizer', tokenizer, tokens), OK)
        self.assertEqual(separated.out.count('<|endoftext|>'), 401)
        # The same command finds its work done; another one is refused.
        before = files_of(tokens)
        again = program('tokenize', '--tokenizer', tokenizer, '--out', tokens, '--field', 'body', text, self.path('lines.jsonl.gz'))
        self.expect_line(self.expect(again, OK).out, 'made by an earlier call')
        self.assertEqual(files_of(tokens), before)
        other = program('tokenize', '--tokenizer', tokenizer, '--out', tokens, '--field', 'body', '--separator', 'none', text)
        self.expect_line(self.expect(other, BAD_CONFIG).err, 'separator differs')

    def test_a_run_knows_its_tokenizer_and_exports_it(self):
        text, tokenizer, tokens = self.made()
        config, run = self.config_of(tokenizer, tokens)
        self.expect(program('train', config), OK)
        with open(run.checkpoint(2, 'manifest.json')) as f:
            manifest = json.load(f)
        with open(os.path.join(tokens, 'tokens.json')) as f:
            self.assertEqual(manifest['content']['user']['tokenizer'], json.load(f)['tokenizer'])
        self.expect(program('export', config, '--to', self.path('exported')), OK)
        self.assertEqual(files_of(self.path('exported'))['tokenizer.json'], files_of(self.folder)['tokenizer.json'])

        other = self.path('other.json')
        self.expect(program('tokenizer', 'train', '--vocab', '300', '--out', other, text), OK)
        outcome = self.expect(program('train', config, '--set', 'data.tokenizer=' + other, '--set', 'run.dir=' + self.path('b')), BAD_DATA)
        self.expect_line(outcome.err, 'tokens_000000.bin was made with another tokenizer')
        outcome = self.expect(program('train', config, '--set', 'model.vocab=319', '--set', 'run.dir=' + self.path('c')), BAD_CONFIG)
        self.expect_line(outcome.err, 'has ids up to 319, but model.vocab is 319')
        self.assertEqual(program('detokenize', '--tokenizer', other, tokens).code, BAD_DATA)
        # Bytes are no tokenizer's ids, neither alone nor blended with text.
        outcome = self.expect(program('train', config, '--set', 'data.tokenizer=bytes', '--set', 'run.dir=' + self.path('d')), BAD_DATA)
        self.expect_line(outcome.err, r'tokens_000000.bin was made with a tokenizer \(hash [0-9a-f]{32}, 320 ids\), and data.tokenizer is bytes')
        blend = json.dumps([{'path': tokens}, {'path': text, 'kind': 'text'}])
        outcome = self.expect(program('train', config, '--set', 'data.path=null', '--set', 'data.sources=' + blend, '--set',
                                      'data.tokenizer=bytes', '--set', 'run.dir=' + self.path('e')), BAD_DATA)
        self.expect_line(outcome.err, 'tokens_000000.bin was made with a tokenizer .* and data.tokenizer is bytes')

    def test_an_answer_ends_with_a_token_by_its_name(self):
        _, tokenizer, tokens = self.made()
        config, _ = self.config_of(tokenizer, tokens)
        self.expect(program('train', config), OK)
        # Of 320 tokens, all about as likely, one is the end of a text.
        words = ['generate', config, '--prompt', 'The', '--samples', '40', '--tokens', '24', '--temperature', '100', '--json']
        answers = [[json.loads(line) for line in self.expect(program(*words, *stop), OK).out.splitlines()]
                   for stop in ((), ('--stop', '<|endoftext|>'), ('--stop', 'never', '--stop', '<|endoftext|>'))]
        end, = set(self.special_ids(tokenizer))
        ended = 0
        for whole, stopped, both in zip(*answers):
            self.assertEqual((whole['finish'], len(whole['tokens'])), ('length', 24))
            kept = whole['tokens'].index(end) + 1 if end in whole['tokens'] else 24
            ended += kept < 24
            self.assertEqual(stopped, both)
            self.assertEqual(stopped['tokens'], whole['tokens'][:kept])
            self.assertEqual(stopped['finish'], 'stop' if kept < 24 or whole['tokens'][-1] == end else 'length')
            self.assertTrue(whole['text'].startswith(stopped['text'][:-3]), stopped)  # a cut character may end it
        self.assertGreater(ended, 0)
        outcome = self.expect(program(*words, '--stop', '<|eot_id|>'), BAD_CONFIG)
        self.expect_line(outcome.err, r'stop is <\|eot_id\|>, which is no token of .*tokenizer.json; its special tokens are <\|endoftext\|>')
        # Other texts are no names, and end an answer as texts.
        self.expect(program(*words, '--stop', '</s>'), OK)

    def special_ids(self, tokenizer):
        with open(tokenizer, encoding='utf-8') as f:
            return [token['id'] for token in json.load(f)['added_tokens'] if token['special']]

    def talks(self):
        """Conversations as token files with masks, and their tokenizer."""
        text = self.text_data()
        tokenizer, tokens, lines = self.path('talk.json'), self.path('talks'), self.path('talks.jsonl')
        with open(text, encoding='utf-8') as f, open(lines, 'w', encoding='utf-8') as out:
            for i, line in enumerate(f.read().splitlines()):
                answer = {'role': 'assistant', 'content': 'Answer %d.' % i}
                out.write(json.dumps({'messages': [{'role': 'user', 'content': line}, answer], 'id': i}) + '\n')
        self.expect(program('tokenizer', 'train', '--vocab', '320', '--out', tokenizer, '--special-token', '<|endoftext|>', '--special-token',
                            '<|im_start|>', '--special-token', '<|im_end|>', text), OK)
        made = self.expect(program('tokenize', '--from', 'messages', '--template', 'chatml', '--tokenizer', tokenizer, '--out', tokens, lines), OK)
        self.expect_line(made.out, r'^\d+ tokens of 400 documents, \d+ of them targets, in 1 file of')
        return tokenizer, tokens, int(made.out.split(', ')[1].split()[0])

    def test_answers_alone_are_learned(self):
        tokenizer, tokens, targets = self.talks()
        with open(os.path.join(tokens, 'tokens_000000.mask'), 'rb') as f:
            mask = f.read()
        self.assertEqual(mask.count(1), targets)
        self.assertEqual(mask.count(0), len(mask) - targets)
        data = {'kind': 'tokens', 'path': tokens, 'tokenizer': tokenizer, 'loss_mask': True, 'document_mask': True, 'end_of_document': 0}
        config, run = self.config(data=data, model={'vocab': 320}, train={'steps': 4, 'eval_every': 2})
        trained = self.expect(program('train', config), OK)
        self.expect_line(trained.out, 'tokens with loss masks')
        evaluated = self.expect(program('eval', config), OK)
        # A text that is scored is one document, and all of it counts.
        self.expect(program('score', config, '--input', self.text_data(1)), OK)
        # All tokens are targets without the mask, and have another loss; the run that goes on says what changed.
        free = self.expect(program('eval', config, '--set', 'data.loss_mask=false'), OK)
        self.assertNotEqual(evaluated.out, free.out)
        more = self.expect(program('train', config, '--set', 'data.loss_mask=false', '--set', 'train.steps=6'), OK)
        self.expect_line(more.err + more.out, 'data.loss_mask was true when .* and is false now')
        # Nothing is taken silently.
        outcome = self.expect(program('train', config, '--set', 'data.loss_mask=null', '--set', 'run.dir=' + self.path('b')), BAD_CONFIG)
        self.expect_line(outcome.err, 'tokens_000000.mask says which tokens .* data.loss_mask is null')
        with open(os.path.join(tokens, 'tokens_000000.mask'), 'r+b') as f:
            f.seek(77)
            f.write(b'\x07')
        outcome = self.expect(program('train', config, '--set', 'run.dir=' + self.path('c')), BAD_DATA)
        self.expect_line(outcome.err, 'tokens_000000.mask: byte offset 77 is 7; 1 .* and 0 are allowed')

    def test_ids_become_token_files(self):
        lines, tokens = self.path('ids.jsonl.gz'), self.path('ids')
        with gzip.open(lines, 'wt') as f:
            for i in range(300):
                f.write(json.dumps({'input_ids': [(i * 7 + k) % 90 for k in range(i % 30)]}) + '\n')
        made = program('tokenize', '--from', 'ids', '--vocab', '100', '--separator', '99', '--out', tokens, lines)
        self.expect_line(self.expect(made, OK).out, '^%d tokens of 300 documents in 1 file of' % (300 + sum(i % 30 for i in range(300))))
        config, _ = self.config(data={'kind': 'tokens', 'path': tokens, 'document_mask': True, 'end_of_document': 99}, model={'vocab': 100},
                                train={'steps': 2})
        self.expect(program('train', config), OK)
        wrong = (('--from', 'ids'), 'neither --tokenizer nor --vocab'), (('--from', 'text', '--vocab', '9'), '--from text: needs --tokenizer'), (
            ('--from', 'ids', '--vocab', '9', '--separator', '9'), '--separator 9: none, or an id from 0 to 8'), (
            ('--from', 'ids', '--vocab', '9', '--template', 'chatml'), '--from ids with --template'), (
            ('--from', 'ids', '--vocab', '9', '--special'), '--from ids with --special')
        for words, what in wrong:
            self.expect_line(self.expect(program('tokenize', *words, '--out', self.path('x'), lines), BAD_CONFIG).err, what)

    def test_templates_are_named_and_none_is_a_program(self):
        text, tokenizer, _ = self.made()
        lines = self.path('one.jsonl')
        with open(lines, 'w') as f:
            f.write('{"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}\n')
        for words, code, what in (((), BAD_CONFIG, '--from messages without --template'),
                                  (('--template', '{{ messages }}'), BAD_CONFIG, r'chat template "\{\{ messages \}\}" is not known.*Jinja'),
                                  (('--template', 'llama3'), BAD_CONFIG, r'llama3 needs the token <\|begin_of_text\|>'),
                                  (('--template', 'plain'), BAD_DATA, r'one.jsonl: line 1: messages\[0\] has "tool_calls"')):
            outcome = program('tokenize', '--from', 'messages', '--tokenizer', tokenizer, *words, '--out', self.path('y'), lines)
            self.expect_line(self.expect(outcome, code).err, what)

    def test_what_is_wrong_is_named(self):
        text, tokenizer, _ = self.made()
        out = self.path('out')
        bad = self.path('bad.json')
        with open(tokenizer, encoding='utf-8') as f:
            document = json.load(f)
        document['normalizer'] = {'type': 'Lowercase'}
        with open(bad, 'w', encoding='utf-8') as f:
            json.dump(document, f)
        outcome = self.expect(program('tokenize', '--tokenizer', bad, '--out', out, text), BAD_DATA)
        self.expect_line(outcome.err, 'bad.json: normalizer.type: Lowercase is not supported; NFC is')
        outcome = self.expect(program('tokenize', '--tokenizer', tokenizer, '--out', out, '--separator', '<|x|>', text), BAD_CONFIG)
        self.expect_line(outcome.err, r'--separator <\|x\|>: not an added token')
        outcome = self.expect(program('tokenize', '--tokenizer', tokenizer, '--out', out, self.path('lines.jsonl.gz')), BAD_DATA)
        self.expect_line(outcome.err, 'lines.jsonl.gz: line 1 has no string "text"')
        outcome = self.expect(program('tokenizer', 'train', '--vocab', '256', '--out', self.path('no.json'), text), BAD_CONFIG)
        self.expect_line(outcome.err, '--vocab 256: at least 257')


if __name__ == '__main__':
    unittest.main(verbosity=2)
