"""Prometheus text of a run that goes on: what it says, and that no client can hold the run up."""
import os
import re
import signal
import socket
import time
import unittest
import urllib.request

from harness import BAD_CONFIG, OK, CliTest, millrace, program, start, wait_until

PORT = ('--metrics-port', '0')
NAMES = ['step', 'loss', 'grad_norm', 'lr', 'tokens_per_second', 'step_seconds', 'device_bytes', 'skipped_steps_total', 'tokens_total',
         'roll_backs_total']
CONNECTION_ENDS_S = 2
LONG = 1000000  # steps; such a run is stopped


def port_of(job):
    def said():
        out = os.pread(job.out.fileno(), 65536, 0).decode()  # the offset is shared with the job
        return re.search(r'^metrics: http://127\.0\.0\.1:(\d+)/metrics\r?$', out, re.M)
    return int(wait_until(said, 'the port', job=job).group(1))


def scrape(port):
    """{name without millrace_: value}; {} before the first step."""
    with urllib.request.urlopen('http://127.0.0.1:%d/metrics' % port, timeout=30) as answer:
        assert answer.headers['Content-Type'] == 'text/plain; version=0.0.4; charset=utf-8', answer.headers
        text = answer.read().decode()
    values, types, helps = {}, {}, set()
    for line in text.splitlines():
        if line.startswith('# HELP millrace_'):
            helps.add(line.split()[2][len('millrace_'):])
        elif line.startswith('# TYPE millrace_'):
            types[line.split()[2][len('millrace_'):]] = line.split()[3]
        else:
            name, value = re.fullmatch(r'millrace_(\w+) (\S+)', line).groups()
            assert name not in values and name in helps, text
            assert types[name] == ('counter' if name.endswith('_total') else 'gauge'), text
            values[name] = float(value)
    assert text == '' or text.endswith('\n')
    return values


def connect(port):
    client = socket.create_connection(('127.0.0.1', port), timeout=30)
    client.settimeout(30)
    return client


def answer_to(port, request):
    """All that the server says until it closes."""
    with connect(port) as client:
        client.sendall(request)
        answer = b''
        while True:
            piece = client.recv(4096)
            if not piece:
                return answer
            answer += piece


class MetricsPort(CliTest):

    def long_run(self, guard={}, **keys):
        config, run = self.config(train={'steps': LONG}, checkpoint={'every': 0}, guard=guard)
        job = start('train', config, *PORT, **keys)
        self.addCleanup(lambda: job.running() and job.end(timeout=0))
        port = port_of(job)
        wait_until(lambda: scrape(port), 'the first step', job=job)
        return job, run, port

    def stop(self, job):
        job.signal(signal.SIGTERM)
        outcome = job.end(timeout=60)
        self.assertEqual(outcome.code, 75, outcome)
        return outcome

    def expect_a_line_of_metrics(self, values, run):
        self.assertEqual(list(values), NAMES)
        line, = [line for line in run.metrics() if line['step'] == values['step']]
        for name, key in (('loss', 'loss'), ('grad_norm', 'grad_norm'), ('lr', 'lr'), ('tokens_per_second', 'tokens_per_s'),
                          ('device_bytes', 'peak_bytes'), ('skipped_steps_total', 'skipped'), ('tokens_total', 'tokens')):
            self.assertEqual(values[name], line[key], name)
        self.assertEqual(values['step_seconds'], line['step_ms'] / 1e3)

    def test_what_is_scraped_is_a_line_of_metrics(self):
        for ranks in (1, 2):
            job, run, port = self.long_run(ranks=ranks, env={'MILLRACE_INJECT': '3:0:loss'})
            wait_until(lambda: scrape(port)['step'] > 3, 'step 4', job=job)
            first = scrape(port)
            self.expect_a_line_of_metrics(first, run)
            self.assertEqual((first['skipped_steps_total'], first['roll_backs_total']), (1, 0))
            wait_until(lambda: scrape(port)['step'] >= first['step'] + 3, 'three more steps', job=job)
            self.expect_a_line_of_metrics(scrape(port), run)
            self.stop(job)
            with self.assertRaises(ConnectionRefusedError):
                connect(port)
            os.rename(run.path, run.path + str(ranks))

    def test_roll_backs_are_counted(self):
        job, run, port = self.long_run(guard={'non_finite': 'roll_back'}, env={'MILLRACE_INJECT': '3:0:loss,5:0:loss'})
        wait_until(lambda: scrape(port)['step'] > 5, 'step 6', job=job)
        values = scrape(port)
        self.expect_a_line_of_metrics(values, run)
        self.assertEqual((values['roll_backs_total'], values['skipped_steps_total']), (2, 0))
        self.stop(job)

    def test_saves_have_the_figures_of_the_lines(self):
        config, run = self.config(train={'steps': LONG}, checkpoint={'every': 5, 'asynchronous': False})
        job = start('train', config, *PORT)
        self.addCleanup(lambda: job.running() and job.end(timeout=0))
        port = port_of(job)
        wait_until(lambda: scrape(port).get('saves_total', 0) >= 2, 'two saves', job=job)
        values = scrape(port)
        self.stop(job)
        self.assertEqual(list(values), NAMES + ['saves_total', 'failed_saves_total', 'saved_step', 'save_stall_seconds', 'save_seconds'])
        self.assertEqual((values['saves_total'] * 5, values['failed_saves_total']), (values['saved_step'], 0))
        line, = [line for line in run.metrics() if line.get('saved_step') == values['saved_step']]
        self.assertAlmostEqual(values['save_stall_seconds'], line['save_stall_ms'] / 1e3, delta=1e-9)
        self.assertAlmostEqual(values['save_seconds'], line['save_ms'] / 1e3, delta=1e-9)

    def test_another_request_is_not_found_and_nonsense_harms_nothing(self):
        job, run, port = self.long_run()
        for request in (b'GET / HTTP/1.1\r\n\r\n', b'GET /metricsx HTTP/1.1\r\n\r\n', b'GET /metrics/ HTTP/1.1\r\n\r\n', b'OPTIONS * HTTP/1.1\r\n\r\n',
                        b'POST /metrics HTTP/1.1\r\nContent-Length: 5000\r\n\r\n' + b'y' * 5000, b'HEAD /metrics HTTP/1.1\r\n\r\n'):
            answer = answer_to(port, request)
            self.assertTrue(answer.startswith(b'HTTP/1.1 404 Not Found\r\n'), (request[:40], answer))
            self.assertEqual(answer.endswith(b'\r\n\r\n'), request.startswith(b'HEAD'))  # which has no body
        # What is no HTTP is refused as such, or closed when its time is up.
        for request, said in ((b'GET /metrics\r\n\r\n', b'HTTP/1.1 400 '), (b'GET /metrics FTP\r\n\r\n', b'HTTP/1.1 400 '), (b'\r\n\r\n', b''),
                              (b'\0\xff%s%n\r\n\r\n', b''), (b'GET /' + b'x' * 1000000 + b' HTTP/1.1\r\n\r\n', b'HTTP/1.1 414 ')):
            try:
                answer = answer_to(port, request)
            except (ConnectionResetError, BrokenPipeError):
                self.assertGreater(len(request), 100000)  # not read to its end
                continue
            self.assertTrue(answer.startswith(said) and len(answer) < 1000 and (said or not answer), (request[:40], answer))
        self.assertIn(b'\nmillrace_step ', answer_to(port, b'GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n'))
        self.assertIn(b'\nmillrace_step ', answer_to(port, b'GET /metrics HTTP/1.0\n\n'))
        for _ in range(20):  # who is gone before the answer
            with connect(port) as client:
                client.sendall(b'GET /metrics HTTP/1.1\r\n\r\n')
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')  # closed by a reset
        self.expect_a_line_of_metrics(scrape(port), run)
        self.stop(job)

    def test_a_silent_and_a_slow_client_hold_up_neither_training_nor_its_end(self):
        job, run, port = self.long_run()

        def attempt(_):
            began = time.monotonic()
            with connect(port) as silent:
                before = len(run.steps())
                wait_until(lambda: len(run.steps()) >= before + 5, 'five more steps', job=job)
                self.assertTrue(scrape(port))  # others need not wait for it
                seconds = time.monotonic() - began
                self.assertEqual(silent.recv(1), b'')
                self.assertGreater(time.monotonic() - began, 0.5 * CONNECTION_ENDS_S)
                return None, seconds >= CONNECTION_ENDS_S

        self.unless_late(attempt)
        with connect(port) as slow:
            began = time.monotonic()
            with self.assertRaises((BrokenPipeError, ConnectionResetError)):
                while time.monotonic() < began + 60:
                    slow.sendall(b'x')
                    time.sleep(0.05)
            self.assertLess(time.monotonic() - began, CONNECTION_ENDS_S + 30)
        with connect(port):
            self.stop(job)

    def test_a_port_in_use_is_refused_before_anything_is_trained(self):
        config, run = self.config()
        with socket.socket() as other:
            other.bind(('127.0.0.1', 0))
            other.listen()
            port = other.getsockname()[1]
            for ranks in (1, 2):
                outcome = self.expect(millrace('train', config, '--metrics-port', port, ranks=ranks), BAD_CONFIG)
                self.expect_line(outcome.err, r'millrace: .*--metrics-port %d: cannot listen on 127\.0\.0\.1:%d: Address already in use' % (port, port))
                self.assertEqual(run.steps(), [])
        self.assertEqual(self.expect(millrace('train', config, '--metrics-port', port), OK).out.count('metrics: http://127.0.0.1:%d/metrics\n' % port), 1)
        # The port of a run that has just ended, at once.
        self.expect(millrace('train', config, '--metrics-port', port, '--set', 'train.steps=8'), OK)

    def test_a_wrong_port_is_a_usage_error_also_under_launch(self):
        config, run = self.config()
        for port in ('-1', '65536', 'http', ''):
            for launch in ((), ('launch', '--')):
                outcome = self.expect(program(*launch, 'train', config, '--metrics-port=%s' % port), BAD_CONFIG)
                self.assertIn('--metrics-port', outcome.err + outcome.out)
        self.assertFalse(os.path.exists(run.path))
        self.expect_line(self.expect(program('launch', '--', 'train', config, *PORT), OK).out, r'^metrics: http://127\.0\.0\.1:\d+/metrics$')
        self.assertEqual(run.steps(), [1, 2, 3, 4, 5, 6])

    def test_only_loopback_listens_and_without_the_option_nothing_does(self):
        job, _, port = self.long_run()
        with open('/proc/net/tcp') as f:
            listening = [words[1] for words in map(str.split, f) if words[3] == '0A' and words[1].endswith(':%04X' % port)]
        self.assertEqual(listening, ['0100007F:%04X' % port])
        self.stop(job)
        config, _ = self.config(run='other')
        self.assertNotIn('metrics:', self.expect(millrace('train', config), OK).out)


if __name__ == '__main__':
    unittest.main(verbosity=2)
