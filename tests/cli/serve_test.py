"""serve: what OpenAI's clients and lm-eval ask for, by the letter; limits; the end; new weights while it runs."""
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import threading
import time
import unittest

from harness import (BAD_CHECKPOINT, BAD_CONFIG, OK, PROGRAM, CliTest, Job, RunDir, environment, flip_bit, millrace, program,
                     wait_until)
from serving import Server

LONG = {'model': {'seq_len': 128}, 'train': {'steps': 6}, 'inference': {'slots': 4, 'decode': [1, 4]}}

SERVED = 'request_success_total'
ABORTED = SERVED + '{finished_reason="abort"}'


def served(by):
    """How many requests have ended, of a server or its metrics."""
    metrics = by if isinstance(by, dict) else by.metrics()
    return sum(value for name, value in metrics.items() if name.startswith(SERVED))


class Serve(CliTest):

    def setUp(self):
        super().setUp()
        self.run_dir = self.trained('long', **LONG).path
        self.config_path, _ = self.config(**LONG)
        self.chosen = ['--set', 'run.dir=' + self.run_dir]

    def serve(self, *words):
        server = Server(self.config_path, *self.chosen, *words)
        self.addCleanup(server.end)
        return server

    def generated(self, *prompts):
        """What `generate` says to prompts, as its lines."""
        path = self.path('prompts.jsonl')
        with open(path, 'w') as f:
            f.writelines(json.dumps(prompt) + '\n' for prompt in prompts)
        outcome = self.expect(millrace('generate', self.config_path, *self.chosen, '--file', path), OK)
        return [json.loads(line) for line in outcome.out.splitlines()]

    def test_answers_are_those_of_generate_and_score(self):
        server = self.serve('--chat-template', 'plain', '--set', 'inference.page_tokens=4')  # a page of a prompt that samples share
        self.check_answers(server)
        self.check_streams(server)
        self.check_scores(server)
        self.check_chat(server)
        self.check_the_rest(server)
        self.check_errors(server)
        self.expect(server.end(), OK)

    def check_answers(self, server):
        prompts = ['Sentence', 'times', 'a']
        expected = self.generated(*({'prompt': p, 'max_tokens': 20, 'temperature': 1, 'seed': 7, 'samples': 2, 'logprobs': 2} for p in prompts))
        answer = server.complete(prompt=prompts, max_tokens=20, temperature=1, seed=7, n=2, logprobs=2, model='millrace')
        self.assertEqual(answer['object'], 'text_completion')
        self.assertEqual(answer['system_fingerprint'], 'step-6')
        self.assertEqual([c['index'] for c in answer['choices']], list(range(6)))
        self.assertEqual(answer['usage'], {'prompt_tokens': sum(map(len, prompts)), 'completion_tokens': 120,
                                           'total_tokens': 120 + sum(map(len, prompts))})
        for choice, line in zip(answer['choices'], expected):
            self.assertEqual(choice['finish_reason'], 'length')
            self.assertEqual(choice['logprobs']['token_logprobs'], line['logprobs'])
            self.assertEqual([sorted(top.values(), reverse=True)[:2] for top in choice['logprobs']['top_logprobs']],
                             [[logprob for _, logprob in top] for top in line['top_logprobs']])
            text = bytes(line['tokens']).decode(errors='replace')
            self.assertEqual(len(choice['logprobs']['tokens']), 20)
            if '\ufffd' not in text:
                self.assertEqual(choice['text'], text)
                self.assertEqual(choice['logprobs']['text_offset'], list(range(20)))
        # Ids do as well as text; a stop string ends the text before it.
        ids = server.complete(prompt=list(b'Sentence'), max_tokens=20, temperature=0)['choices'][0]
        self.assertEqual(server.complete(prompt=[list(b'Sentence')], max_tokens=20, temperature=0)['choices'][0], ids)
        self.assertEqual(server.complete(prompt='Sentence', max_tokens=20, temperature=0)['choices'][0], ids)
        stop = ids['text'][5:8]
        stopped = server.complete(prompt='Sentence', max_tokens=20, temperature=0, stop=[stop, 'never'])['choices'][0]
        self.assertEqual((stopped['text'], stopped['finish_reason']), (ids['text'][:ids['text'].index(stop)], 'stop'))
        self.assertEqual(len(server.complete(prompt='Sentence', temperature=0)['choices'][0]['text']), 16)  # the API's default

    def check_streams(self, server):
        asked = {'prompt': ['Sentence', 'times'], 'max_tokens': 30, 'n': 2, 'seed': 3, 'logprobs': 1, 'stop': ['e', '\n']}
        whole = server.complete(**asked)
        events = server.events('/v1/completions', **asked, stream_options={'include_usage': True})
        self.assertEqual((events[-1]['choices'], events[-1]['usage']), ([], whole['usage']))
        for choice in whole['choices']:
            parts = [e['choices'][0] for e in events[:-1] if e['choices'][0]['index'] == choice['index']]
            self.assertEqual(''.join(p['text'] for p in parts), choice['text'])
            self.assertEqual([p['finish_reason'] for p in parts], [None] * (len(parts) - 1) + [choice['finish_reason']])
            for key, value in choice['logprobs'].items():
                self.assertEqual([x for p in parts if p['logprobs'] for x in p['logprobs'][key]], value)
        self.assertTrue(all(e['usage'] is None for e in events[:-1]))
        self.assertNotIn('usage', server.events('/v1/completions', **asked)[0])

    def check_scores(self, server):
        """lm-eval's way: the prompt's own log-probabilities, one more entry than it has tokens."""
        texts = ['Sentence 3 says that 3 times 10 is 30.\n', 'x', 'Sentence 12 says']
        path = self.path('texts.jsonl')
        with open(path, 'w') as f:
            f.writelines(json.dumps({'text': text}) + '\n' for text in texts)
        scored = self.expect(millrace('score', self.config_path, *self.chosen, '--input', path), OK)
        answer = server.complete(prompt=[list(t.encode()) for t in texts], max_tokens=1, echo=True, logprobs=1, temperature=0, seed=1234)
        greedy = self.generated(*({'prompt': t, 'max_tokens': 1, 'temperature': 0, 'logprobs': 1} for t in texts))
        for text, choice, line, next_token in zip(texts, answer['choices'], scored.out.splitlines(), greedy):
            logprobs = choice['logprobs']
            self.assertEqual({len(values) for values in logprobs.values()}, {len(text) + 1})
            self.assertEqual(logprobs['token_logprobs'][:-1], json.loads(line)['logprobs'])
            self.assertEqual(logprobs['token_logprobs'][-1:], next_token['logprobs'])
            self.assertEqual((logprobs['token_logprobs'][0], logprobs['top_logprobs'][0]), (None, None))
            self.assertTrue(choice['text'].startswith(text) and len(choice['text']) > len(text))
            self.assertEqual(logprobs['text_offset'], list(range(len(text) + 1)))
            for token, logprob, top in zip(logprobs['tokens'][1:], logprobs['token_logprobs'][1:], logprobs['top_logprobs'][1:]):
                self.assertEqual(top[token], logprob)
                self.assertLessEqual(logprob, max(top.values()))
                self.assertEqual(len(top), 1 if logprob == max(top.values()) else 2)
        only = server.complete(prompt='Sentence', max_tokens=0, echo=True, logprobs=1, n=2)['choices']
        self.assertEqual([c['text'] for c in only], ['Sentence'] * 2)
        self.assertEqual(only[0]['logprobs'], only[1]['logprobs'])
        self.assertEqual(len(only[0]['logprobs']['tokens']), 8)
        # A greedy token is the likeliest by the very same number.
        text = 'Sentence' + server.complete(prompt='Sentence', max_tokens=12, temperature=0)['choices'][0]['text']
        logprobs = server.complete(prompt=text, max_tokens=1, echo=True, logprobs=1, temperature=0)['choices'][0]['logprobs']
        for logprob, top in list(zip(logprobs['token_logprobs'], logprobs['top_logprobs']))[8:]:
            self.assertEqual(logprob, max(top.values()))

    def check_chat(self, server):
        messages = [{'role': 'system', 'content': 'Count.'}, {'role': 'user', 'content': [{'type': 'text', 'text': 'Sentence 1'}]}]
        asked = {'messages': messages, 'max_completion_tokens': 25, 'temperature': 0, 'logprobs': True, 'top_logprobs': 2}
        answer = server.post('/v1/chat/completions', **asked)
        text = 'system:\nCount.\n\nuser:\nSentence 1\n\nassistant:\n'
        same = server.complete(prompt=text, max_tokens=25, temperature=0, stop='\n\n', logprobs=2)['choices'][0]
        self.assertEqual(answer['object'], 'chat.completion')
        choice = answer['choices'][0]
        self.assertEqual(choice['message'], {'role': 'assistant', 'content': same['text'], 'refusal': None})
        self.assertEqual(choice['finish_reason'], same['finish_reason'])
        content = choice['logprobs']['content']
        self.assertEqual([t['logprob'] for t in content], same['logprobs']['token_logprobs'])
        self.assertEqual(bytes(b for t in content for b in t['bytes']).decode(errors='replace'), same['text'])
        self.assertTrue(all(len(t['top_logprobs']) == 2 and t['top_logprobs'][0]['logprob'] == t['logprob'] for t in content))
        events = server.events('/v1/chat/completions', **asked)
        self.assertEqual(events[0]['choices'][0]['delta'], {'role': 'assistant', 'content': ''})
        self.assertEqual(events[-1]['choices'][0]['delta'], {})
        self.assertEqual(''.join(e['choices'][0]['delta'].get('content', '') for e in events), same['text'])

    def check_the_rest(self, server):
        status, _, models = server.ask('GET', '/v1/models')
        self.assertEqual((status, [m['id'] for m in models['data']]), (200, ['millrace']))
        self.assertEqual(server.ask('GET', '/v1/models/millrace')[2], models['data'][0])
        self.assertEqual(server.ask('GET', '/health')[::2], (200, {'status': 'ok', 'weight_version': 6}))
        self.assertEqual(server.ask('HEAD', '/health')[0], 200)
        self.assertEqual(server.post('/tokenize', prompt='h\u00e9', add_special_tokens=False)['tokens'], list('h\u00e9'.encode()))
        self.assertEqual(server.post('/detokenize', tokens=list('h\u00e9'.encode())), {'prompt': 'h\u00e9'})
        info = server.ask('GET', '/tokenizer_info')[2]
        self.assertLessEqual({'eos_token', 'bos_token', 'chat_template'}, set(info))
        metrics = server.metrics()
        self.assertEqual(metrics['num_requests_running'] + metrics['num_requests_waiting'], 0)
        self.assertEqual(metrics['weight_version'], 6)
        self.assertGreater(metrics['generation_tokens_total'], 200)
        self.assertGreaterEqual(metrics['prefix_cache_hits_total'], 2 * 4)
        self.assertGreater(metrics['prefix_cache_queries_total'], 2 * metrics['prefix_cache_hits_total'])
        ended = sum(v for k, v in metrics.items() if k.startswith('request_success_total'))
        self.assertEqual(metrics['e2e_request_latency_seconds_count'], ended)
        self.assertEqual(metrics['e2e_request_latency_seconds_bucket{le="+Inf"}'], ended)

    def check_errors(self, server):
        """Wrong requests are 400 (clients do not try again), with the field's name; the connection stays usable."""
        client = server.connect()
        for body, status, param, code in (
                ({'prompt': 'a', 'temperature': -1}, 400, 'temperature', 'invalid_value'), ({}, 400, 'prompt', 'invalid_value'),
                ({'prompt': 'a' * 200}, 400, 'prompt', 'context_length_exceeded'),
                ({'prompt': 'a' * 100000}, 400, 'prompt', 'context_length_exceeded'),
                ({'prompt': 'a', 'max_tokens': 128}, 400, 'prompt', 'context_length_exceeded'),
                ({'prompt': [256]}, 400, 'prompt', 'vocabulary'), ({'prompt': 'a', 'model': 'gpt'}, 404, 'model', 'model_not_found'),
                ({'prompt': 'a', 'logit_bias': {'5': 1}}, 400, 'logit_bias', 'invalid_value'), ('{', 400, None, 'invalid_value')):
            got, _, answer = server.ask('POST', '/v1/completions', body, connection=client)
            error = answer['error']
            self.assertEqual((got, error['param'], error['code'], error['type']), (status, param, code, 'invalid_request_error'), body)
            self.assertTrue(error['message'])
        for method, path, allowed in (('GET', '/v1/completions', 'POST'), ('POST', '/health', 'GET, HEAD')):
            status, headers, _ = server.ask(method, path, connection=client)
            self.assertEqual((status, headers['Allow']), (405, allowed))  # RFC 9110 asks for the header
        self.assertEqual(server.ask('GET', '/nothing', connection=client)[0], 404)
        status, _, answer = server.ask('POST', '/v1/completions', {'prompt': 'a'}, {'Origin': 'http://a.example'}, client)
        self.assertEqual((status, answer['error']['code']), (403, 'origin_not_allowed'))
        client.close()

    def test_every_path_but_health_asks_for_a_token(self):
        tokens = self.path('tokens')
        with open(tokens, 'w') as f:
            f.write('first-token-of-two\n\nsecond-token-of-two\n')
        os.chmod(tokens, 0o640)
        self.expect_line(self.expect(program('serve', self.config_path, *self.chosen, '--token-file', tokens), BAD_CONFIG).err, 'mode 640')
        os.chmod(tokens, 0o600)
        outcome = self.expect(program('serve', self.config_path, *self.chosen, '--host', '0.0.0.0', '--token-file', tokens), BAD_CONFIG)
        self.expect_line(outcome.err, '--insecure')
        server = self.serve('--token-file', tokens)
        paths = [('POST', '/v1/completions'), ('POST', '/v1/chat/completions'), ('GET', '/v1/models'), ('POST', '/tokenize'),
                 ('POST', '/detokenize'), ('GET', '/tokenizer_info'), ('GET', '/metrics'), ('GET', '/nothing'), ('DELETE', '/v1/models')]
        for method, path in paths:
            for header in (None, '', 'Bearer ', 'Bearer first-token-of-tw', 'Bearer first-token-of-two2', 'first-token-of-two',
                           'Basic first-token-of-two'):
                headers = {} if header is None else {'Authorization': header}
                status, got, answer = server.ask(method, path, '{}', headers)
                self.assertEqual((status, answer['error']['code'], got['WWW-Authenticate']), (401, 'invalid_api_key', 'Bearer'), (path, header))
        self.assertEqual(server.ask('GET', '/health')[0], 200)
        for token in ('first-token-of-two', 'second-token-of-two'):
            self.assertEqual(server.ask('GET', '/v1/models', headers={'Authorization': 'Bearer ' + token})[0], 200)

    def test_limits_on_bodies_queue_and_time(self):
        server = self.serve('--max-queue', '2', '--max-body-mib', '1', '--max-tokens', '100')
        self.assertEqual(server.ask('POST', '/v1/completions', 'x' * (1 << 20))[0], 400)
        with socket.create_connection(('127.0.0.1', server.port)) as client:
            client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n' % (1 << 40))
            self.assertIn(b' 413 ', client.recv(4096))
        chunked = server.connect()
        chunked.request('POST', '/v1/completions', iter([b'x' * 65536] * 17), {}, encode_chunked=True)
        self.assertEqual(chunked.getresponse().status, 413)
        chunked.close()
        self.assertEqual(server.ask('POST', '/v1/completions', {'prompt': 'a', 'max_tokens': 101})[2]['error']['param'], 'max_tokens')
        self.assertEqual(server.ask('POST', '/v1/completions', {'prompt': 'a', 'n': 3})[0], 400)
        statuses, retry = [], set()
        clients = [server.connect() for _ in range(40)]
        os.kill(server.pid(), signal.SIGSTOP)  # all have asked before it answers any
        for client in clients:
            client.request('POST', '/v1/completions', json.dumps({'prompt': 'a', 'max_tokens': 100}), {'Content-Type': 'application/json'})
        os.kill(server.pid(), signal.SIGCONT)
        for client in clients:
            answer = client.getresponse()
            statuses.append(answer.status)
            retry.add((answer.status, answer.headers.get('Retry-After')))
            client.close()
        self.assertEqual((len(statuses), set(statuses)), (40, {200, 429}))
        self.assertIn((429, '1'), retry)
        self.assertEqual(server.ask('POST', '/v1/completions', {'prompt': 'a'})[0], 200)
        slow = self.serve('--request-s', '0.1')
        statuses = [slow.ask('POST', '/v1/completions', {'prompt': ['a'] * 200, 'max_tokens': 100})[0]]
        self.assertIn(statuses[0], (400, 503))  # begun, or not even that

    def test_a_client_that_leaves_is_not_answered_for_long(self):
        server = self.serve()
        body = json.dumps({'prompt': ['a'] * 200, 'max_tokens': 100})
        for stream in ('', '"stream":true,'):
            def attempt(_):
                before = server.metrics()
                client = socket.create_connection(('127.0.0.1', server.port))
                sent = body.replace('{', '{' + stream, 1).encode()
                client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s' % (len(sent), sent))
                wait_until(lambda: server.metrics()['num_requests_running'] > 0 or served(server) > served(before), 'work')
                client.close()
                wait_until(lambda: server.metrics()['num_requests_running'] == 0 and served(server) > served(before), 'rest')
                after = server.metrics()
                aborted = after[ABORTED] - before[ABORTED]
                return aborted, aborted == 0  # answered before this process left

            self.assertEqual(self.unless_late(attempt), 1)
        self.assertEqual(server.metrics()['kv_cache_usage_perc'], 0)

    def test_sigterm_drains(self):
        def attempt(_):
            server, answers, refusals = self.serve('--drain-s', '600'), [], []
            asking = threading.Thread(target=lambda: answers.append(
                server.events('/v1/completions', prompt=['Sentence'] * 60, max_tokens=100, temperature=0)))
            other = server.connect()
            self.assertEqual(server.ask('GET', '/health', connection=other)[0], 200)
            asking.start()
            wait_until(lambda: server.metrics()['num_requests_running'] > 0 or answers, 'work')
            server.stop()
            wait_until(lambda: 'asked to stop' in server.log(), 'the request')
            with contextlib.suppress(OSError, http.client.HTTPException):  # all was answered, and nobody is there any more
                refusals.append(server.ask('POST', '/v1/completions', {'prompt': 'a'}, connection=other))
                refusals.append(server.ask('GET', '/health', connection=other))
            asking.join()
            other.close()
            return (server, answers, refusals), len(refusals) < 2

        server, answers, refusals = self.unless_late(attempt)
        status, headers, answer = refusals[0]
        self.assertEqual((status, answer['error']['code'], headers['Retry-After']), (503, 'draining', '1'))
        self.assertEqual(refusals[1][0], 503)
        outcome = self.expect(server.end(stop=False), OK)
        self.expect_line(outcome.err, 'stopped serving')
        texts = {}
        for event in answers[0]:
            choice = event['choices'][0]
            texts[choice['index']] = texts.get(choice['index'], '') + choice['text']
        self.assertEqual(len(texts), 60)
        self.assertEqual(len(set(texts.values())), 1)

    def test_a_second_signal_ends_it(self):
        def attempt(_):
            server = self.serve('--drain-s', '600')
            client = server.connect()
            client.request('POST', '/v1/completions', json.dumps({'prompt': ['a'] * 256, 'max_tokens': 100}))
            wait_until(lambda: server.metrics()['num_requests_running'] > 0 or served(server) > 0, 'work')
            server.stop()
            wait_until(lambda: 'answers are finished first' in server.log(), 'the first')
            time.sleep(0.2)  # signals within 100 ms are one
            server.stop()
            status = client.getresponse().status
            client.close()
            self.expect(server.end(stop=False), OK)
            return status, status == 200  # answered before the second

        self.assertEqual(self.unless_late(attempt), 503)

    def test_follow_takes_new_weights_and_says_so(self):
        config, run = self.trained_afresh(**LONG)
        follower, _ = self.config(name='follower.json', run='elsewhere', **LONG)
        server = Server(follower, '--follow', run.path)
        self.addCleanup(server.end)
        asked = {'prompt': 'Sentence', 'max_tokens': 30, 'temperature': 0, 'logprobs': 1}
        versions, stop = [], threading.Event()

        def keep_asking():
            while not stop.is_set():
                answer = server.complete(**asked)
                versions.append((answer['system_fingerprint'], json.dumps(answer['choices'])))

        asking = threading.Thread(target=keep_asking)
        asking.start()
        wait_until(lambda: versions, 'an answer of the old weights', job=server.job)
        self.expect(millrace('train', config, '--set', 'train.steps=10', ranks=2), OK)
        wait_until(lambda: server.metrics()['weight_version'] == 10, 'the new weights', job=server.job)
        stop.set()
        asking.join()
        answer = server.complete(**asked)
        self.assertEqual(answer['system_fingerprint'], 'step-10')
        self.assertEqual(server.ask('GET', '/health')[2]['weight_version'], 10)
        new = json.loads(self.expect(millrace('generate', config, '--prompt', 'Sentence', '--tokens', '30', '--temperature', '0', '--json'), OK).out)
        self.assertEqual(answer['choices'][0]['logprobs']['token_logprobs'], new['logprobs'])
        by_version = {}
        for version, choices in versions:
            by_version.setdefault(version, set()).add(choices)
        self.assertIn('step-6', by_version)
        self.assertTrue(all(len(answers) == 1 for answers in by_version.values()), by_version)
        self.expect_line(server.log(), 'weights of step 10 from')
        self.expect(server.end(), OK)

    def test_follow_leaves_a_damaged_checkpoint_out(self):
        config, run = self.trained_afresh(**LONG)
        later = RunDir(self.path('later'))
        shutil.copytree(run.path, later.path)
        self.expect(millrace('train', config, '--set', 'run.dir=' + later.path, '--set', 'train.steps=10', ranks=2), OK)
        server = Server(config, '--follow', run.path)
        self.addCleanup(server.end)
        before = server.complete(prompt='Sentence', temperature=0)
        damaged = max((later.checkpoint(8, name) for name in os.listdir(later.checkpoint(8))), key=os.path.getsize)
        flip_bit(damaged, os.path.getsize(damaged) // 2)
        os.rename(later.checkpoint(8), run.checkpoint(8))
        wait_until(lambda: 'step_00000008 is not served' in server.log(), 'the warning', job=server.job)
        after = server.complete(prompt='Sentence', temperature=0)
        self.assertEqual([after[key] for key in ('system_fingerprint', 'choices')], ['step-6', before['choices']])
        os.rename(later.checkpoint(10), run.checkpoint(10))
        wait_until(lambda: server.metrics()['weight_version'] == 10, 'the next one', job=server.job)
        self.expect_line(server.log(), 'is not served')
        self.expect(server.end(), OK)

    def test_what_cannot_be_served_is_refused_by_name(self):
        for words, code, line in (
                (['--set', 'inference.slots=0'], BAD_CONFIG, 'inference.slots'),
                (['--chat-template', '{{ messages }}'], BAD_CONFIG, 'chatml, llama3 and plain'),
                (['--host', 'localhost'], BAD_CONFIG, 'in digits'),
                (['--set', 'run.dir=' + self.path('empty')], BAD_CHECKPOINT, 'no usable checkpoint'),
                (['--follow', self.run_dir, '--checkpoint', 'x'], BAD_CONFIG, '--follow')):
            outcome = self.expect(program('serve', self.config_path, *self.chosen, *words), code)
            self.assertIn(line, outcome.err, outcome)
        few_files = Job(['bash', '-c', 'ulimit -n 256 && exec "$@"', 'bash', PROGRAM, 'serve', self.config_path, *self.chosen, '--port', '0'],
                        environment())
        self.assertIn('--connections 1000 takes 1128 open files, and this process may have 256', self.expect(few_files.end(), BAD_CONFIG).err)
        self.assertIn('serve runs on 1 rank',
                      self.expect(millrace('serve', self.config_path, *self.chosen, ranks=2), BAD_CONFIG).err)


if __name__ == '__main__':
    unittest.main(verbosity=2)
