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
        self.expect_line(made.out, r'^\d+ tokens of 401 documents .* in 1 files of')
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
