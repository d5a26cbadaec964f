"""openai-python and lm-eval against a server: what they make of its answers. Needs both (serve_clients_test.sh has the versions).

    PYTHON -B tests/cli/serve_clients.py
"""
import json
import os
import pathlib
import re
import sys
import unittest

os.environ.update(HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1', TRANSFORMERS_OFFLINE='1', TOKENIZERS_PARALLELISM='false')
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from harness import OK, CliTest, millrace, program  # noqa: E402
from serving import Server  # noqa: E402

GOLDEN = pathlib.Path('tests/golden/lm_eval').absolute()
TOKENIZER = os.path.abspath('tests/runtime/text/testdata/tokenizer.json')
END = 696  # its <|end|>, which is called here as what lm-eval puts before a text
END_TEXT = '<|endoftext|>'


class Clients(CliTest):

    def setUp(self):
        super().setUp()
        os.environ['HF_HOME'] = self.path('cache')
        texts, tokens, tokenizer = self.path('texts'), self.path('tokens'), self.path('tokenizer.json')
        with open(TOKENIZER) as f, open(tokenizer, 'w') as to:
            to.write(f.read().replace('<|end|>', END_TEXT))
        with open(texts, 'w') as f:
            f.writelines('Sentence %d says that %d times %d is %d.\n' % (i, i, i + 7, i * (i + 7)) for i in range(600))
        self.expect(program('tokenize', '--tokenizer', tokenizer, '--separator', END_TEXT, '--out', tokens, texts), OK)
        self.config_path, self.run_dir = self.trained_afresh(
            data={'kind': 'tokens', 'path': tokens, 'tokenizer': tokenizer, 'end_of_document': END, 'document_mask': True,
                  'eval_batches': 1},
            model={'seq_len': 256, 'vocab': 697}, train={'steps': 12}, inference={'slots': 8, 'decode': [1, 8]})
        self.tokens = self.path('bearer')
        with open(os.open(self.tokens, os.O_CREAT | os.O_WRONLY, 0o600), 'w') as f:
            f.write('a-token-of-this-test\n')
        self.server = Server(self.config_path, '--chat-template', 'plain', '--model-name', 'tiny', '--token-file', self.tokens)
        self.addCleanup(self.server.end)

    def test_openai_python(self):
        import openai
        base = 'http://127.0.0.1:%d/v1' % self.server.port
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=base, api_key='another').models.list()
        client = openai.OpenAI(base_url=base, api_key='a-token-of-this-test')
        self.assertEqual([m.id for m in client.models.list()], ['tiny'])
        self.assertEqual(client.models.retrieve('tiny').id, 'tiny')
        asked = {'model': 'tiny', 'prompt': ['Sentence 1', 'times'], 'max_tokens': 20, 'temperature': 0.9, 'seed': 11, 'n': 2, 'logprobs': 2}
        whole = client.completions.create(**asked)
        self.assertEqual([c.index for c in whole.choices], [0, 1, 2, 3])
        self.assertTrue(all(len(c.logprobs.tokens) == len(c.logprobs.token_logprobs) > 0 for c in whole.choices))
        texts, usage = [''] * 4, None
        for chunk in client.completions.create(**asked, stream=True, stream_options={'include_usage': True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        self.assertEqual((texts, usage), ([c.text for c in whole.choices], whole.usage))
        messages = [{'role': 'user', 'content': 'Sentence 3'}]
        asked = {'model': 'tiny', 'messages': messages, 'max_completion_tokens': 15, 'temperature': 0, 'logprobs': True, 'top_logprobs': 3}
        answer = client.chat.completions.create(**asked)
        choice = answer.choices[0]
        self.assertEqual(choice.message.role, 'assistant')
        self.assertTrue(all(t.top_logprobs[0].logprob == t.logprob and len(t.top_logprobs) == 3 for t in choice.logprobs.content))
        text = ''
        for chunk in client.chat.completions.create(**asked, stream=True):
            text += chunk.choices[0].delta.content or ''
        self.assertEqual(text, choice.message.content)
        with client.chat.completions.with_streaming_response.create(**asked, stream=True) as stream:
            next(iter(stream.iter_lines()))  # and leaves
        for wrong, error in (({'temperature': 3}, openai.BadRequestError), ({'model': 'other'}, openai.NotFoundError),
                             ({'tools': [{'type': 'function', 'function': {'name': 'f'}}]}, openai.BadRequestError)):
            with self.assertRaises(error) as raised:
                client.chat.completions.create(**dict(asked, **wrong))
            self.assertEqual(raised.exception.param, next(iter(wrong)))
        self.expect(self.server.end(), OK)

    def test_the_templates_that_are_said_are_those_that_are_used(self):
        import jinja2
        self.config_path, run = self.config(name='bytes.json', run='bytes', model={'seq_len': 512}, inference={'slots': 2})
        self.expect(millrace('train', self.config_path), OK)
        messages = [{'role': 'system', 'content': 'Count. '}, {'role': 'user', 'content': 'one\n\ntwo'},
                    {'role': 'assistant', 'content': 'three'}, {'role': 'user', 'content': ' four'}]
        prompts = set()
        for template in ('chatml', 'llama3', 'plain'):
            server = Server(self.config_path, '--chat-template', template)
            self.addCleanup(server.end)
            jinja = server.ask('GET', '/tokenizer_info')[2]['chat_template']
            text = jinja2.Environment().from_string(jinja).render(messages=messages, add_generation_prompt=True)
            asked = {'temperature': 0, 'max_tokens': 12}
            chat, same = server.post('/v1/chat/completions', messages=messages, **asked), server.complete(prompt=text, **asked)
            self.assertEqual(chat['usage']['prompt_tokens'], same['usage']['prompt_tokens'], text)
            self.assertTrue(same['choices'][0]['text'].startswith(chat['choices'][0]['message']['content']), text)
            prompts.add(text)
            self.expect(server.end(), OK)
        self.assertEqual(len(prompts), 3)

    def native(self, task):
        """What `eval` says: {metric: value}, and a line for each example."""
        examples = self.path('examples.jsonl')
        outcome = self.expect(millrace('eval', self.config_path, '--task', task, '--examples', examples), OK)
        with open(examples) as f:
            return json.loads(outcome.out), [json.loads(line) for line in f]

    def test_lm_eval_by_the_servers_tokenizer(self):
        import lm_eval
        import yaml
        from lm_eval.models.openai_completions import LocalCompletionsAPI
        from lm_eval.tasks.hellaswag import utils
        url = 'http://127.0.0.1:%d/v1/completions' % self.server.port
        lm = LocalCompletionsAPI(model='tiny', base_url=url, tokenizer_backend='remote', auth_token='a-token-of-this-test', batch_size=4,
                                 num_concurrent=3, max_length=256, header={'Authorization': 'Bearer a-token-of-this-test'})
        self.assertEqual(lm.tokenizer.encode(END_TEXT), [END])
        self.assertEqual((lm.tokenizer.eos_token, lm.tokenizer.decode(lm.tokenizer.encode('times \u00e9'))), (END_TEXT, 'times \u00e9'))
        yaml_text = (pathlib.Path(utils.__file__).parent / 'hellaswag.yaml').read_text()
        hellaswag = yaml.safe_load(re.sub(r'!function \S+', 'null', yaml_text))
        hellaswag.update(dataset_path='json', dataset_kwargs={'data_files': {'validation': str(GOLDEN / 'examples.jsonl')}}, training_split=None,
                         process_docs=utils.process_docs)
        result = lm_eval.simple_evaluate(model=lm, tasks=[hellaswag], bootstrap_iters=0, log_samples=True)
        _, lines = self.native('hellaswag:%s' % (GOLDEN / 'examples.jsonl'))
        samples = sorted(result['samples']['hellaswag'], key=lambda s: s['doc_id'])
        self.assertEqual(len(samples), len(lines))
        worst = 0
        for sample, line in zip(samples, lines):
            found = [float(r[0]) for r in sample['filtered_resps']]
            worst = max([worst] + [abs(a - b) for a, b in zip(found, line['log_probs'], strict=True)])
        print('hellaswag: %d examples, log-probabilities of endings differ by at most %g' % (len(samples), worst))
        self.assertLess(worst, 1e-3)  # sums of up to 60 numbers that were rounded to f32, of about 6 each
        ppl = {'task': 'ppl', 'dataset_path': 'json', 'dataset_kwargs': {'data_files': {'validation': str(GOLDEN / 'texts.jsonl')}},
               'output_type': 'loglikelihood_rolling', 'validation_split': 'validation', 'test_split': None, 'doc_to_text': '',
               'doc_to_target': '{{text}}', 'metric_list': [{'metric': 'bits_per_byte'}]}
        generate = {'task': 'until', 'dataset_path': 'json', 'dataset_kwargs': ppl['dataset_kwargs'], 'output_type': 'generate_until',
                    'validation_split': 'validation', 'test_split': None, 'doc_to_text': 'Sentence', 'doc_to_target': '{{text}}',
                    'generation_kwargs': {'until': ['\n', '.'], 'max_gen_toks': 12}, 'metric_list': [{'metric': 'exact_match'}]}
        result = lm_eval.simple_evaluate(model=lm, tasks=[ppl, generate], bootstrap_iters=0, log_samples=True)
        _, lines = self.native('ppl:%s' % (GOLDEN / 'texts.jsonl'))
        samples = sorted(result['samples']['ppl'], key=lambda s: s['doc_id'])
        # lm-eval keeps a position of the window for a token to be generated, so longer texts are cut elsewhere.
        pairs = [(sample['filtered_resps'][0][0] if isinstance(sample['filtered_resps'][0], (list, tuple)) else sample['filtered_resps'][0],
                  line['log_prob']) for sample, line in zip(samples, lines, strict=True) if line['ids'] < 255]
        worst = max(abs(a - b) for a, b in pairs)
        print('ppl: %d texts of one window, log-probabilities differ by at most %g of up to %.0f' % (
            len(pairs), worst, max(abs(b) for _, b in pairs)))
        self.assertGreaterEqual(len(pairs), 5)
        self.assertLess(worst, 1e-3)
        answers = {s['filtered_resps'][0] for s in result['samples']['until']}
        self.assertEqual(len(answers), 1)
        self.assertNotRegex(answers.pop(), r'[\n.]')
        self.expect(self.server.end(), OK)


if __name__ == '__main__':
    unittest.main(verbosity=2)
