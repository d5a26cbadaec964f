"""A server of `millrace serve`, for tests: started, asked over http.client, ended."""
import http.client
import json
import os
import re
import signal

from harness import start, wait_until


class Server:

    def __init__(self, config, *words, env=None):
        self.outcome = None
        self.job = start('serve', config, '--port', '0', *words, env=env)
        self.port = int(wait_until(self._said, 'the port', job=self.job).group(1))

    def _said(self):
        return re.search(r'serving \S+ at http://127\.0\.0\.1:(\d+)\r?$', self.log(), re.M)

    def log(self):
        return os.pread(self.job.err.fileno(), 1 << 20, 0).decode()  # the offset is shared with the job

    def pid(self):
        """The launcher's, or of the program that it has become or started."""
        pid = self.job.process.pid
        while True:
            with open('/proc/%d/task/%d/children' % (pid, pid)) as f:
                children = f.read().split()
            if not children:
                return pid
            pid = int(children[0])

    def connect(self):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=120)

    def ask(self, method, path, body=None, headers=None, connection=None):
        """(status, headers, JSON or text)."""
        client = connection or self.connect()
        text = json.dumps(body) if isinstance(body, dict) else body
        client.request(method, path, text, {'Content-Type': 'application/json', **(headers or {})})
        answer = client.getresponse()
        content = answer.read()
        if connection is None:
            client.close()
        if content and answer.headers.get('Content-Type') == 'application/json':
            content = json.loads(content)
        return answer.status, answer.headers, content

    def post(self, path, **body):
        """The JSON of a success."""
        status, _, content = self.ask('POST', path, body)
        assert status == 200, (status, content)
        return content

    def complete(self, **body):
        return self.post('/v1/completions', **body)

    def events(self, path, **body):
        """The JSON of each event of a stream."""
        status, headers, content = self.ask('POST', path, dict(body, stream=True))
        assert status == 200 and headers['Content-Type'].startswith('text/event-stream'), (status, headers, content)
        parts = content.decode().split('\n\n')
        assert parts[-2:] == ['data: [DONE]', ''], parts[-2:]
        assert all(part.startswith('data: ') for part in parts[:-1]), parts
        return [json.loads(part[len('data: '):]) for part in parts[:-2]]

    def metrics(self):
        """{name with labels, without millrace_: value}."""
        status, _, text = self.ask('GET', '/metrics')
        assert status == 200, text
        lines = [line.split(' ') for line in text.decode().splitlines() if not line.startswith('#')]
        return {name[len('millrace_'):]: float(value) for name, value in lines}

    def stop(self):
        self.job.signal(signal.SIGTERM)

    def end(self, stop=True):
        """How it has ended, after SIGTERM where it still ran."""
        if self.outcome is None:
            if stop and self.job.running():
                self.stop()
            self.outcome = self.job.end()
        return self.outcome
