"""Running Millrace as a user does, and reading what it leaves behind. Needs nothing but Python's standard library.

The working directory is the repository's root (Bazel's test folder looks like it). MILLRACE_BINARY names another program than the built one,
which is the one without CUDA: these tests start more ranks than a machine has GPUs.
"""
import contextlib
import json
import os
import re
import signal
import struct
import subprocess
import tempfile
import time
import unittest

LAUNCHER = os.path.abspath('tools/millrace')
PROGRAM = os.path.abspath(os.environ.get('MILLRACE_BINARY') or next(
    (p for p in ('tools/cli/millrace_cpu', 'bazel-bin/tools/cli/millrace_cpu') if os.path.exists(p)), 'tools/cli/millrace_cpu'))

# Exit codes of tools/README.md.
OK, BAD_CONFIG, BAD_DATA, BAD_CHECKPOINT, DOES_NOT_FIT, HUNG, RANK_LOST, IO_FAILED, PREEMPTED, STOPPED = 0, 2, 3, 4, 5, 71, 72, 74, 75, 143

# What tests say about seconds is meant without a sanitizer. Bazel configures those with these variables (.bazelrc).
SLOWER = 10 if {'ASAN_OPTIONS', 'TSAN_OPTIONS'} & set(os.environ) else 1

TIMEOUT_S = 120 if SLOWER == 1 else 600  # of one command; the machine may be busy


class Outcome:
    """A command that has ended."""

    def __init__(self, args, code, out, err, seconds):
        self.args, self.code, self.out, self.err, self.seconds = args, code, out, err, seconds

    def __str__(self):
        return '%s\nexit code %s after %.1f s\n--- stdout\n%s--- stderr\n%s' % (
            ' '.join(self.args), self.code, self.seconds, self.out, self.err)

    __repr__ = __str__  # also among others


class Job:
    """A command that runs, in a session of its own."""

    def __init__(self, args, env):
        self.args = args
        self.began = time.monotonic()
        self.out, self.err = tempfile.TemporaryFile('w+'), tempfile.TemporaryFile('w+')
        self.process = subprocess.Popen(args, env=env, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        start_new_session=True)

    def signal(self, number):
        self.process.send_signal(number)

    def running(self):
        return self.process.poll() is None

    def out_so_far(self):
        return os.pread(self.out.fileno(), 1 << 20, 0).decode().replace('\r\n', '\n')  # the offset is shared with the command

    def end(self, timeout=TIMEOUT_S):
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        seconds = time.monotonic() - self.began
        texts = []
        for stream in (self.out, self.err):
            stream.seek(0)
            # mpirun's pseudo-terminal ends lines with CR LF.
            texts.append(stream.read().replace('\r\n', '\n'))
            stream.close()
        return Outcome(self.args, self.process.returncode, texts[0], texts[1], seconds)


def environment(extra=None):
    env = dict(os.environ, MILLRACE_BINARY=PROGRAM, OPENBLAS_NUM_THREADS='1', OMP_NUM_THREADS='1')
    env.update(OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1')
    env.update(OMPI_MCA_btl_vader_single_copy_mechanism='none')
    env.update(extra or {})
    return env


def start(*args, ranks=1, env=None):
    """tools/millrace, with -n when there is more than one rank."""
    return Job([LAUNCHER] + (['-n', str(ranks)] if ranks > 1 else []) + [str(a) for a in args], environment(env))


def millrace(*args, ranks=1, env=None, timeout=TIMEOUT_S):
    return start(*args, ranks=ranks, env=env).end(timeout)


def program(*args, env=None):
    """The program itself, without launcher or mpirun."""
    return Job([PROGRAM] + [str(a) for a in args], environment(env)).end()


def raw_mpirun(ranks, *args, env=None):
    """The program under mpirun as a user without our launcher starts it."""
    command = ['mpirun', '-n', str(ranks), '--oversubscribe', '--bind-to', 'none', '--mca', 'mpi_yield_when_idle', '1', PROGRAM]
    return Job(command + [str(a) for a in args], environment(env)).end()


def wait_until(condition, what, timeout=TIMEOUT_S, job=None):
    """Polls often: what is waited for may be short."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        if job is not None and not job.running():
            value = condition()
            if value:
                return value
            raise AssertionError('the job ended before %s\n%s' % (what, job.end()))
        time.sleep(0.002)
    raise AssertionError('waited %s s in vain for %s' % (timeout, what))


def rank_pids(marker):
    """{rank: pid} of the ranks whose command line holds `marker` (the folder of their configuration)."""
    pids = {}
    for name in os.listdir('/proc'):
        if not name.isdigit():
            continue
        try:
            with open('/proc/%s/cmdline' % name, 'rb') as f:
                words = f.read().split(b'\0')
            if os.path.realpath(words[0].decode()) != os.path.realpath(PROGRAM) or not any(marker.encode() in w for w in words):
                continue
            with open('/proc/%s/environ' % name, 'rb') as f:
                variables = dict(v.split(b'=', 1) for v in f.read().split(b'\0') if b'=' in v)
        except OSError:
            continue  # it has just ended
        if b'OMPI_COMM_WORLD_RANK' in variables:
            pids[int(variables[b'OMPI_COMM_WORLD_RANK'])] = int(name)
    return pids


def process_state(pid):
    """A letter of /proc/pid/stat; X when there is none."""
    try:
        with open('/proc/%d/stat' % pid) as f:
            return f.read().rpartition(')')[2].split()[0]
    except OSError:
        return 'X'


def holding(*steps, rank=1):
    """The environment of a run that stands before these steps, in each process anew, until CliTest.held or ended lets it go on: a rank stops
    itself. A run that is only watched may be at its end when a test that was not given a core looks again."""
    return {'MILLRACE_INJECT': ','.join('%d:%d:hold' % (step, rank) for step in steps)}


def pending(pid):
    """Whether signals wait for a process, which is stopped."""
    with open('/proc/%d/status' % pid) as f:
        masks = [line.split()[1] for line in f if line.startswith(('SigPnd:', 'ShdPnd:'))]
    return any(int(mask, 16) for mask in masks)


def float32_bits(value):
    return '0x%08x' % struct.unpack('<I', struct.pack('<f', value))[0]


def flip_bit(path, offset):
    with open(path, 'r+b') as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 0x10]))


def truncate(path, size):
    with open(path, 'r+b') as f:
        f.truncate(size)


def read(path):
    """The bytes of a file; none where there is none."""
    try:
        with open(path, 'rb') as f:
            return f.read()
    except OSError:
        return b''


def files_of(folder):
    """{relative path: content} of all files."""
    contents = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, 'rb') as f:
                contents[os.path.relpath(path, folder)] = f.read()
    return contents


class RunDir:
    """What a run has left in its folder."""

    def __init__(self, path):
        self.path = path

    def file(self, *names):
        return os.path.join(self.path, *names)

    def metrics(self):
        """Whole lines only: the file may be read while it grows."""
        try:
            with open(self.file('metrics.jsonl')) as f:
                return [json.loads(line) for line in f if line.endswith('\n')]
        except FileNotFoundError:
            return []

    def steps(self):
        return [line['step'] for line in self.metrics()]

    def loss_bits(self):
        return [line['loss_bits'] for line in self.metrics()]

    def summary(self):
        with open(self.file('summary.json')) as f:
            return json.load(f)

    def hashes(self):
        summary = self.summary()
        return summary['param_hash'], summary['optimizer_hash']

    def checkpoints(self):
        """Folder names, oldest first; damaged.* and tmp.* are others."""
        root = self.file('checkpoints')
        return sorted(n for n in os.listdir(root) if n.startswith('step_')) if os.path.isdir(root) else []

    def others(self):
        root = self.file('checkpoints')
        return sorted(n for n in os.listdir(root) if not n.startswith('step_')) if os.path.isdir(root) else []

    def checkpoint(self, step, *names):
        return self.file('checkpoints', 'step_%08d' % step, *names)


class CliTest(unittest.TestCase):
    """A folder per test, tiny models, and assertions that show the whole outcome."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def trained_afresh(self, **sections):
        """A configuration, and its run on two ranks: this test's own."""
        config, run = self.config(**sections)
        self.expect(millrace('train', config, ranks=2), OK)
        return config, run

    def trained(self, name, **sections):
        """The run of a configuration on two ranks, trained once for all tests of the class. Not to be changed."""
        runs = vars(type(self)).get('_runs')
        if runs is None:
            runs = type(self)._runs = {}
        if name not in runs:
            folder = tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))
            self.addClassCleanup(folder.cleanup)
            own, self.folder = self.folder, folder.name
            _, runs[name] = self.trained_afresh(**sections)
            self.folder = own
        return runs[name]

    @contextlib.contextmanager
    def held(self, job, run, step, rank=1):
        """Where a run started with holding(step) stands meanwhile, with step - 2 recorded. Gives the stopped rank's pid."""
        def stopped():
            pid = rank_pids(self.folder).get(rank)
            return pid is not None and process_state(pid) == 'T' and pid

        pid = wait_until(stopped, 'rank %d to stop before step %d' % (rank, step), job=job)
        wait_until(lambda: len(run.metrics()) >= step - 2, 'step %d' % (step - 2), job=job)
        try:
            yield pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def ended(self, job):
        """The outcome of a job whose ranks go on wherever they are held."""
        while job.running() and time.monotonic() - job.began < TIMEOUT_S:
            for pid in rank_pids(self.folder).values():
                if process_state(pid) == 'T':
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)
        return job.end()

    def unless_late(self, attempt, tries=5):
        """attempt(number) gives a result, and whether it says nothing, mostly because this process was too slow: then another attempt is made."""
        for number in range(tries):
            result, late = attempt(number)
            if not late:
                return result
        self.fail('proves nothing %d times\n%r' % (tries, result))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def text_data(self, sentences=400):
        """Text that differs everywhere, the same for every test; the path of its file."""
        path = self.path('data.txt')
        with open(path, 'w') as f:
            for i in range(sentences):
                f.write('Sentence %d says that %d times %d is %d.\n' % (i, i, i + 7, i * (i + 7)))
        return path

    def config(self, name='config.json', run='run', **sections):
        """Writes a tiny configuration; `sections` replace keys of it. Returns its path and the run's folder."""
        content = {
            'model': {'family': 'llama', 'layers': 2, 'd_model': 32, 'heads': 2, 'ffn': 64, 'seq_len': 32},
            'data': {'kind': 'text', 'path': self.text_data(), 'eval_batches': 2},
            'train': {'steps': 6, 'micro_batch': 2, 'accumulate': 2},
            'optimizer': {'lr': 1e-2, 'schedule': {'kind': 'cosine', 'warmup': 2, 'min_lr': 1e-3}},
            'checkpoint': {'every': 2},
            'run': {'dir': self.path(run)},
        }
        for section, keys in sections.items():
            content.setdefault(section, {}).update(keys)
        path = self.path(name)
        with open(path, 'w') as f:
            json.dump(content, f)
        return path, RunDir(self.path(run))

    def expect(self, outcome, code):
        self.assertEqual(outcome.code, code, outcome)
        return outcome

    def expect_line(self, text, pattern, count=1):
        """Exactly `count` lines match."""
        found = [line for line in text.splitlines() if re.search(pattern, line)]
        self.assertEqual(len(found), count, '%d lines match %r in:\n%s' % (len(found), pattern, text))
        return found

    def status_steps(self, out):
        """The steps of the status lines, in order."""
        return [int(m.group(1)) for m in re.finditer(r'^step (\d+)/\d+  loss ', out, re.M)]
