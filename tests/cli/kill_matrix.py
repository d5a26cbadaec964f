"""Kills a supervised run again and again, by a seed, and compares what it leaves with a run that nobody killed.

    python3 -B tests/cli/kill_matrix.py --kills 500 --seed 1      # from the repository's root, after a build

Who       rank 0, rank 1, mpirun, the supervisor; always SIGKILL. Who is not there yet at a start is replaced by who is. Each of the 16
          pairs of who and when comes up before any comes again.
When      start: at a random moment of the first `start_s` seconds after the last death was noticed. For the others the matrix waits until
          the run is beyond all that it has done before, then
          step: a random part of a step after one of the next steps;
          save: when a checkpoint is being written (its tmp. folder exists);
          eval: when the status line of a step that is evaluated is out, and its line of metrics.jsonl is not.
          Not twice in a row at a start: three starts in a row that fail make the supervisor give up.
Then      the supervisor starts the run again; where it was killed itself, the matrix starts it, in half of the cases at once, else after
          it has seen that nothing of the run is left. A supervisor that gives up because two kills met the same step (its rule) is
          counted, checked to have had that reason, and started again.
End       once the steps go on after the last kill the run is asked to stop, and told how many steps it has: a run of which the matrix,
          which may have to wait for a core, had to be quicker would be at its end before the kills are.
Checked   same final parameters and optimizer as a twin that nobody kills, every step once in metrics.jsonl with the same loss and held-out loss, no
          process (found by a variable in its environment) and no shared memory left, seconds from each kill to the next step.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from harness import OK, PREEMPTED, PROGRAM, RunDir, environment, millrace, read

MARKER = 'MILLRACE_KILL_MATRIX'
MOMENTS = ('start', 'step', 'save', 'eval')
VICTIMS = ('rank 0', 'rank 1', 'mpirun', 'supervisor')
TIMEOUT_S = 60  # of one wait; the machine may be busy
ORPHAN_S = 30   # for what a killed supervisor leaves to be gone
SAID = 'millrace launch: '


class Failed(Exception):
    pass


def is_over(pid):
    stat = read('/proc/%d/stat' % pid).rpartition(b')')[2].split()
    return not stat or stat[0] in (b'Z', b'X')


def carriers(variable):
    """Processes that run with this among the variables of their environment."""
    return [int(name) for name in os.listdir('/proc')
            if name.isdigit() and variable.encode() in read('/proc/%s/environ' % name).split(b'\0') and not is_over(int(name))]


def children(pid):
    try:
        tasks = os.listdir('/proc/%d/task' % pid)
    except OSError:
        return []
    return [int(child) for task in tasks for child in read('/proc/%d/task/%s/children' % (pid, task)).split()]


def scratch_of(run):
    """The folder in shared memory that the supervisor of a run has made for Open MPI; '' when there is none."""
    return read(run.file('.launch')).decode()


class Matrix:

    def __init__(self, config, run, log_path, sets=(), seed=0, eval_every=6, start_s=0.6, step_s=0.01):
        self.rng = random.Random(seed)
        self.config, self.run, self.sets, self.log_path = config, run, list(sets), log_path
        self.eval_every, self.start_s, self.step_s = eval_every, start_s, step_s
        self.marker = '%s=%s' % (MARKER, run.path)
        self.log_place = 0       # where the present attempt's output begins
        self.launches = 0
        self.furthest = 0        # step
        self.killed_at = None    # and no step since
        self.deck = []           # (who, moment) that are to come
        self.kills = []          # (who, moment)
        self.caught = dict.fromkeys(MOMENTS, 0)  # kills after which it could be seen that they fell into their moment
        self.scratch = set()     # folders of all supervisors
        self.restart_s, self.gone_s, self.gave_up = [], [], []

    # ---- the supervisor and what runs under it

    def launch(self):
        self.launches += 1
        self.log_place = len(read(self.log_path))
        with open(self.log_path, 'ab') as log:
            self.process = subprocess.Popen(
                [PROGRAM, 'launch', '--ranks', '2', '--max-restarts', '100000', '--', 'train', self.config] + self.sets,
                env=environment({MARKER: self.run.path}), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True)

    def log(self):
        """The present attempt's output."""
        with open(self.log_path, 'rb') as f:
            f.seek(self.log_place)
            return f.read().replace(b'\r', b'').decode('latin-1')

    def failures(self):
        # While a line is written that crosses a page of the file, its first part may be seen alone.
        whole = [line for line in read(self.run.file('restarts.jsonl')).splitlines(keepends=True) if line.endswith(b'\n')]
        return [e for e in map(json.loads, whole) if e['event'] == 'failed']

    def keep_up(self):
        """Starts a supervisor again that gave up by its rule; any other end is an error."""
        code = self.process.poll()
        if code is None:
            return
        words = read(self.log_path)[-3000:].decode('latin-1')
        reason = re.findall(r'not started again: (it ended twice after step \d+ without progress in between)', words)
        if not reason or self.failures()[-1]['restarts']:
            raise Failed('the supervisor ended with %d\n%s' % (code, words))
        self.gave_up.append(reason[-1])
        self.launch()

    def wait(self, condition, what):
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            self.keep_up()
            time.sleep(0.001)
        raise Failed('waited %d s in vain for %s\n%s' % (TIMEOUT_S, what, self.log()[-3000:]))

    def pids(self):
        """{who: pid} of what is there."""
        found = {'supervisor': self.process.pid}
        for pid in children(self.process.pid):
            if not read('/proc/%d/cmdline' % pid).split(b'\0')[0].endswith(b'mpirun'):
                continue
            found['mpirun'] = pid
            for rank in children(pid):
                for variable in read('/proc/%d/environ' % rank).split(b'\0'):
                    if variable.startswith(b'OMPI_COMM_WORLD_RANK=') and not is_over(rank):
                        found['rank %d' % int(variable.split(b'=')[1])] = rank
        return found

    def last_step(self):
        lines = read(self.run.file('metrics.jsonl'))[-4096:].split(b'\n')
        return json.loads(lines[-2])['step'] if len(lines) > 1 and lines[-2] else 0

    def shown_step(self):
        """Of the present attempt's last status line; 0: none yet."""
        shown = re.findall(r'^step (\d+)/', self.log(), re.M)
        return int(shown[-1]) if shown else 0

    def saving(self):
        root = self.run.file('checkpoints')
        return os.path.isdir(root) and any(n.startswith('tmp.') for n in os.listdir(root))

    def evaluating(self):
        step = self.shown_step()
        return step > 0 and step % self.eval_every == 0 and self.last_step() == step - 1

    # ---- the kills

    def draw(self):
        """The next of all pairs in a random order, and so again; no start after a start."""
        after_start = bool(self.kills) and self.kills[-1][1] == 'start'
        allowed = [pair for pair in self.deck if not (after_start and pair[1] == 'start')]
        if not allowed:
            pairs = [(who, moment) for who in VICTIMS for moment in MOMENTS]
            self.rng.shuffle(pairs)
            self.deck += pairs
            allowed = [pair for pair in self.deck if not (after_start and pair[1] == 'start')]
        self.deck.remove(allowed[0])
        return allowed[0]

    def measure_restart(self):
        self.wait(self.shown_step, 'the next step')
        if self.killed_at is not None:
            self.restart_s.append(time.monotonic() - self.killed_at)
            self.killed_at = None

    def wait_for(self, moment):
        if moment == 'start':
            time.sleep(self.rng.uniform(0, self.start_s))
            self.keep_up()
            return
        self.measure_restart()
        self.wait(lambda: self.last_step() > self.furthest, 'a new step')
        if moment == 'step':
            target = self.last_step() + self.rng.randint(0, 2)
            self.wait(lambda: self.last_step() >= target, 'step %d' % target)
            time.sleep(self.rng.uniform(0, self.step_s))
        elif moment == 'save':
            self.wait(self.saving, 'a save')
        else:
            self.wait(self.evaluating, 'an evaluation')

    def kill(self):
        wanted, moment = self.draw()
        at_once = self.rng.random() < 0.5
        self.wait_for(moment)
        pids = self.pids()
        who = next(w for w in (wanted, 'mpirun', 'supervisor') if w in pids)
        count, launches, failures = len(self.kills), self.launches, len(self.failures())
        self.scratch.add(scratch_of(self.run))
        os.kill(pids[who], signal.SIGKILL)
        self.killed_at = time.monotonic()
        self.kills.append((who, moment))
        if who == 'supervisor':
            self.process.wait()
            left = carriers(self.marker) if not at_once else []
            while left:
                if time.monotonic() - self.killed_at > ORPHAN_S:
                    raise Failed('kill %d: processes %s outlive the supervisor' % (count + 1, left))
                time.sleep(0.002)
                left = carriers(self.marker)
            if not at_once:
                self.gone_s.append(time.monotonic() - self.killed_at)
        self.caught[moment] += {'start': lambda: not self.shown_step(), 'step': lambda: True, 'save': self.saving,
                                'eval': self.evaluating}[moment]()
        if who == 'supervisor':
            self.furthest = max(self.furthest, self.last_step())
            self.launch()
            return
        # What the dying attempt still says does not count.
        self.wait(lambda: self.launches > launches or len(self.failures()) > failures, 'word of the supervisor')
        self.furthest = max([self.furthest] + [f['step'] for f in self.failures()[-1:]])
        if self.launches == launches:
            text = self.wait(lambda: SAID in self.log() and self.log(), 'word of the supervisor')
            self.log_place += text.rindex(SAID) + text[:text.rindex(SAID)].count('\n')  # mpirun's lines end with CR LF

    def go(self, kills, say=print):
        self.launch()
        for number in range(1, kills + 1):
            before = len(self.restart_s)
            self.kill()
            taken = ' (next step after the last kill: %.2f s)' % self.restart_s[-1] if len(self.restart_s) > before else ''
            say('kill %d: %s, %s; furthest step %d%s' % (number, *self.kills[-1], self.furthest, taken))
        self.measure_restart()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(1200)
        finally:
            self.end()
        if code != PREEMPTED:
            raise Failed('the run ended with %d\n%s' % (code, self.log()[-3000:]))

    def finish(self, twin):
        """Trains some steps more, and as many as that are in all from the beginning where nobody kills. Gives how many, and the seconds of
        the latter."""
        steps = self.run.steps()[-1] + 7
        for folder in (self.run.path, twin.path):
            outcome = millrace('train', self.config, *self.sets, '--set', 'train.steps=%d' % steps, '--set', 'run.dir=' + folder, ranks=2,
                               timeout=3600)
            if outcome.code != OK:
                raise Failed(str(outcome))
        return steps, outcome.seconds

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    # ---- what is left

    def compare(self, twin, steps):
        """Everything that differs from the run that nobody killed."""
        wrong = []
        if self.run.steps() != list(range(1, steps + 1)):
            wrong.append('metrics.jsonl does not have each step once')
        if self.run.hashes() != twin.hashes():
            wrong.append('hashes %s, of the twin %s' % (self.run.hashes(), twin.hashes()))
        for key in ('loss_bits', 'eval_loss_bits', 'tokens', 'skipped'):
            pairs = zip(self.run.metrics(), twin.metrics())
            different = [a['step'] for a, b in pairs if a.get(key) != b.get(key)]
            if different:
                wrong.append('%s differs in steps %s' % (key, different[:10]))
        if carriers(self.marker):
            wrong.append('processes are left: %s' % carriers(self.marker))
        left = [n for n in os.listdir(self.run.path) if n in ('lock', 'launch.lock', '.launch', '.progress')] + self.run.others()
        left += [folder for folder in self.scratch if folder and os.path.exists(folder)]
        if left:
            wrong.append('files are left: %s' % left)
        return wrong

    def summary(self):
        table = {who: {m: self.kills.count((who, m)) for m in MOMENTS} for who in VICTIMS}
        return {'kills': len(self.kills), 'by_victim_and_moment': table, 'fell_into_their_moment': self.caught,
                'restart_to_next_step_s': {'count': len(self.restart_s), 'median': round(statistics.median(self.restart_s), 2),
                                           'max': round(max(self.restart_s), 2)},
                'gone_after_supervisor_s': {'count': len(self.gone_s), 'max': round(max(self.gone_s, default=0), 3)},
                'gave_up_by_rule': self.gave_up}


# A rate that does not depend on how many steps there are.
ENDLESS = ('--set', 'train.steps=10000000', '--set', 'optimizer.schedule.kind=constant', '--set', 'optimizer.schedule.min_lr=0')


def tiny_config(folder, run='run'):
    """Steps of about 10 ms, saved every 5, evaluated every 6, of which there is no end."""
    content = {
        'model': {'family': 'llama', 'layers': 2, 'd_model': 32, 'heads': 2, 'ffn': 64, 'seq_len': 64},
        'data': {'kind': 'text', 'path': os.path.join(folder, 'data.txt'), 'eval_batches': 4},
        'train': {'steps': 10000000, 'micro_batch': 16, 'accumulate': 1, 'eval_every': 6},
        'optimizer': {'lr': 1e-2, 'schedule': {'kind': 'constant', 'warmup': 10, 'min_lr': 0}},
        'checkpoint': {'every': 5},
        'run': {'dir': os.path.join(folder, run)},
    }
    with open(os.path.join(folder, 'data.txt'), 'w') as f:
        for i in range(4000):
            f.write('Sentence %d says that %d times %d is %d.\n' % (i, i, i + 7, i * (i + 7)))
    path = os.path.join(folder, run + '.json')
    with open(path, 'w') as f:
        json.dump(content, f)
    return path, RunDir(content['run']['dir'])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--kills', type=int, default=20)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--config', help='another configuration than the tiny one; its eval_every, steps and schedule are set')
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix='kill_matrix.')
    if arguments.config:
        config, run = os.path.abspath(arguments.config), RunDir(folder + '/run')
        sets = [*ENDLESS, '--set', 'train.eval_every=6', '--set', 'checkpoint.every=5', '--set', 'run.dir=' + run.path]
        step_s, start_s = 0.15, 1.5
    else:
        config, run = tiny_config(folder)
        sets = []
        step_s, start_s = 0.01, 0.6
    matrix = Matrix(config, run, folder + '/launch.log', sets, arguments.seed, step_s=step_s, start_s=start_s)
    began = time.monotonic()
    try:
        matrix.go(arguments.kills, say=lambda text: print(text, flush=True))
        twin = RunDir(folder + '/twin')
        steps, seconds = matrix.finish(twin)
        print('a run that nobody kills: %d steps in %.1f s' % (steps, seconds), flush=True)
        wrong = matrix.compare(twin, steps)
    except Failed as error:
        wrong = [str(error)]
        matrix.end()
    print(json.dumps(matrix.summary() if matrix.restart_s else {}, indent=1))
    print('%d kills, seed %d, in %.0f s: %s' % (len(matrix.kills), arguments.seed, time.monotonic() - began,
                                               'nothing differs, nothing is left' if not wrong else '\n'.join(wrong)))
    if wrong:
        sys.exit('what it left is in ' + folder)
    shutil.rmtree(folder)


if __name__ == '__main__':
    main()
