"""What README.md shows: each command is run on a tiny set-up, each output has the lines that README shows, pictures and links exist. So are the
package's lines for several hosts.

Lines for GPUs and schedulers are run up to the first rank (MILLRACE_PREFLIGHT): verb, options and configuration are checked, and the plan is made.
A command that this test does not know is a failure.
"""
import json
import os
import re
import shlex
import signal
import struct
import subprocess
import unittest
import urllib.request

from harness import OK, PROGRAM, TIMEOUT_S, CliTest, Job, environment, millrace, program, wait_until

QUICKSTART = 'configs/quickstart.json'
PACKAGE = 'tools/lib/package/README.md'
PAGES = ['README.md', 'runtime/README.md', 'runtime/run/README.md', 'runtime/watch/README.md', 'tools/README.md', 'tools/cli/README.md']


def blocks(text, language):
    return re.findall(r'^```%s\n(.*?)^```$' % language, text, re.M | re.S)


def commands(text):
    """Words of each command line, comments left out."""
    lines = [line for block in blocks(text, 'sh') for line in block.replace('\\\n', ' ').splitlines()]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def shape(line):
    """A line of output with its figures taken out."""
    return re.sub(r'\d[\d.,:]*(e[+-]?\d+)?[kMG]?', '#', line).rstrip()


class Readme(CliTest):

    @classmethod
    def setUpClass(cls):
        with open('README.md') as f:
            cls.text = f.read()

    def setUp(self):
        super().setUp()
        for name in ('tools', 'third_party'):
            os.symlink(os.path.abspath(name), self.path(name))
        for name in ('configs', 'bin', 'DATA_DIR'):
            os.mkdir(self.path(name))
        os.symlink(PROGRAM, self.path('bin', 'millrace'))
        for name in os.listdir('configs'):
            if name.endswith('.json'):
                os.symlink(os.path.abspath(os.path.join('configs', name)), self.path('configs', name))
        for name, count in (('train.bin', 4000), ('val.bin', 1000)):
            with open(self.path('DATA_DIR', name), 'wb') as f:
                f.write(struct.pack('<%dH' % count, *[(7 * i + i // 13) % 256 for i in range(count)]))
        # The quickstart, six steps of it.
        with open(QUICKSTART) as f:
            quickstart = json.load(f)
        quickstart['train'].update(steps=6, eval_every=3)
        quickstart['optimizer']['schedule']['warmup'] = 2
        quickstart['checkpoint']['every'] = 3
        os.remove(self.path(QUICKSTART))
        with open(self.path(QUICKSTART), 'w') as f:
            json.dump(quickstart, f)
        # "A configuration of yours", and a folder with weights for it.
        self.config(name='hf.json', run='hf_run', model={'vocab': 256})
        self.expect(millrace('train', self.path('hf.json')), OK)
        self.expect(program('export', self.path('hf.json'), '--to', self.path('HF_DIR')), OK)
        self.config(name='run.json', run='runs/mine', model={'vocab': 256})

    def start_in_folder(self, words, env=None):
        return Job(['bash', '-c', 'cd "$0" && exec "$@"', self.folder] + words, environment(env))

    def run_in_folder(self, words, env=None):
        return self.expect(self.start_in_folder(words, env).end(TIMEOUT_S), OK)

    def serve_in_folder(self, words):
        """Until it has completed a text. At a port that is free."""
        job = self.start_in_folder(words + ['--port', '0'])
        said = lambda: os.pread(job.err.fileno(), 1 << 20, 0).decode()  # the offset is shared with the job
        address = wait_until(lambda: re.search(r'serving \S+ at (http://127\.0\.0\.1:\d+)\r?$', said(), re.M), 'the address', job=job).group(1)
        asked = urllib.request.Request(address + '/v1/completions', json.dumps({'prompt': 'The licen', 'max_tokens': 5}).encode(),
                                       {'Content-Type': 'application/json'})
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as reply:
            self.assertEqual(json.load(reply)['usage']['completion_tokens'], 5)
        job.signal(signal.SIGTERM)
        return self.expect(job.end(TIMEOUT_S), OK)

    def preflight(self, words, ranks):
        """Verb and configuration of a line for machines that are not here."""
        self.run_in_folder([PROGRAM] + words, {'MILLRACE_PREFLIGHT': '1', 'MILLRACE_WORLD': str(ranks)})

    def number_after(self, words, option):
        if option in words:
            return int(words[words.index(option) + 1])
        return next((int(w[len(option) + 1:]) for w in words if w.startswith(option + '=')), 1)

    def run_line(self, words):
        if words[0] in ('mpirun', 'srun'):
            at = next(i for i, word in enumerate(words) if word.endswith('bin/millrace'))
            options, rest = words[:at], words[at + 1:]
            ranks = (self.number_after(options, '-n') if words[0] == 'mpirun' else
                     self.number_after(options, '--nodes') * self.number_after(options, '--ntasks-per-node'))
            self.assertGreater(ranks, 1)
            return self.preflight(rest, ranks)
        if words[0] == 'bin/millrace':  # the package's: by its own launcher
            return self.preflight(words[3:], self.number_after(words, '-n'))
        if words[0] in ('./tools/test', './tools/package'):
            return self.run_in_folder([words[0], '--help'])
        self.assertEqual(words[0], './tools/millrace')
        ranks = self.number_after(words, '-n')
        verb = words[3] if '-n' in words else words[1]
        if ranks > 2:
            return self.preflight(words[3:], ranks)
        if verb in ('train', 'launch'):  # each of these lines begins a run of its own
            subprocess.run(['rm', '-rf', self.path('runs', 'mine')], check=True)
        return self.serve_in_folder(words) if verb == 'serve' else self.run_in_folder(words)

    def made(self, words):
        """What a line is there for."""
        verb = next((w for w in words if w in ('train', 'plan', 'report', 'export', 'launch', 'eval', 'generate', 'serve', 'doctor')), None)
        if 'run.json' in words and verb in ('train', 'launch') and words[0] == './tools/millrace':
            self.assertTrue(os.path.exists(self.path('runs', 'mine', 'summary.json')), words)
        for path in {'plan': ['plan.html'], 'report': ['runs/quickstart/report.html'],
                     'export': ['NEW_DIR/config.json', 'NEW_DIR/model.safetensors']}.get(verb, []):
            self.assertGreater(os.path.getsize(self.path(path)), 100, path)
        return verb

    def test_every_command_runs(self):
        lines = commands(self.text)
        self.assertGreater(len(lines), 12)
        verbs, outcomes = set(), {}
        for words in lines:
            with self.subTest(line=' '.join(words)):
                outcomes[' '.join(words)] = self.run_line(words)
                verbs.add(self.made(words))
        self.assertLessEqual({'train', 'plan', 'report', 'export', 'launch', 'eval', 'generate', 'serve', 'doctor'}, verbs)
        self.check_output(outcomes[' '.join(lines[0])].out)
        again = self.run_line(lines[0])  # as README says of the same command
        self.assertRegex(again.out, r'is complete')

    def test_the_package_s_lines_for_several_ranks_start(self):
        with open(PACKAGE) as f:
            lines = [words for words in commands(f.read()) if words[0] in ('mpirun', 'srun') or '-n' in words]
        self.assertEqual([words[0] for words in lines], ['bin/millrace', 'mpirun', 'mpirun', 'srun'])
        for words in lines:
            with self.subTest(line=' '.join(words)):
                self.run_line(words)

    def check_output(self, out):
        """README's output of the first command: a line each of the same shape, in the same order."""
        shown = blocks(self.text, 'text')[0].splitlines()
        real = [shape(line) for line in out.splitlines()]
        at = 0
        for line in shown:
            if line == '[...]':
                continue
            whole = not line.endswith('[...]')
            want = shape(line if whole else line[:-len('[...]')])
            found = next((i for i in range(at, len(real)) if (real[i] == want if whole else real[i].startswith(want))), None)
            self.assertIsNotNone(found, '%r is not in\n%s' % (line, out))
            at = found + 1
            if line == 'sample:':  # its text is another one on every machine
                self.assertGreater(len(''.join(out.splitlines()[at:])), 20)
                return
        self.fail('README shows no sample')

    def test_links_and_pictures_exist(self):
        for page in PAGES:
            with open(page) as f:
                for target in re.findall(r'\]\(([^)#]+)\)', f.read()):
                    self.assertTrue(os.path.exists(os.path.join(os.path.dirname(page), target)), (page, target))
        pictures = re.findall(r'!\[.*?\]\((.*?)\)', self.text)
        self.assertEqual(len(pictures), 2)
        self.assertLessEqual(sum(os.path.getsize(p) for p in pictures), 300 * 1024)

    def test_it_is_short(self):
        lines = self.text.splitlines()
        self.assertLessEqual(len(lines), 96)
        self.assertEqual([line for line in lines if len(line) > 100], [])


if __name__ == '__main__':
    unittest.main(verbosity=2)
