"""TensorBoard's event files, read by a small reader of their own format, hold what metrics.jsonl holds, over a kill and a resume."""
import glob
import math
import os
import signal
import struct
import unittest

from harness import OK, RANK_LOST, CliTest, holding, millrace, rank_pids, start

ON = ('--set', 'run.tensorboard=true')
TAGS = ['loss', 'grad_norm', 'lr', 'step_ms', 'tokens_per_s', 'mfu', 'peak_bytes']
SOMETIMES = ['eval_loss', 'save_stall_ms', 'save_ms']


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(path):
    """Payloads of a file of whole TFRecords; raises where a checksum is wrong or bytes are left over."""
    with open(path, 'rb') as f:
        data = f.read()
    while data:
        size, = struct.unpack('<Q', data[:8])
        payload, end = data[12:12 + size], 16 + size
        if struct.unpack('<I', data[8:12])[0] != masked(data[:8]) or struct.unpack('<I', data[end - 4:end])[0] != masked(payload):
            raise AssertionError('%s: a wrong checksum' % path)
        yield payload
        data = data[end:]


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7f) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """(number, value) of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                assert kind == 2, kind
                size, at = varint(data, at)
            value, at = data[at:at + size], at + size
            assert kind == 2 or len(value) == size
        yield tag >> 3, value


def float32(value):
    return struct.unpack('<f', struct.pack('<f', value))[0]


class EventFile:

    def __init__(self, path):
        events = [dict(fields(payload)) for payload in records(path)]
        self.times = [struct.unpack('<d', event[1])[0] for event in events]
        assert events[0][3] == b'brain.Event:2' and 2 not in events[0], events[0]
        assert dict(fields(events[1][7])) == {1: 1}, events[1]  # SessionLog: START
        self.start = events[1][2]
        self.scalars = {}  # {step: {tag: float32}}
        for event in events[2:]:
            values = [dict(fields(value)) for number, value in fields(event[5]) if number == 1]
            assert event[2] not in self.scalars
            self.scalars[event[2]] = {v[1].decode(): struct.unpack('<f', v[2])[0] for v in values}


def event_files(run, folder='tensorboard'):
    return [EventFile(path) for path in sorted(glob.glob(run.file(folder, 'events.out.tfevents.*')))]


def as_tensorboard_sees(files):
    """A file's START takes away what earlier files say of its step and later ones."""
    scalars = {}
    for file in files:
        scalars = {step: values for step, values in scalars.items() if step < file.start}
        assert not scalars.keys() & file.scalars.keys()
        scalars.update(file.scalars)
    return scalars


class TensorBoard(CliTest):

    def expect_metrics(self, scalars, run):
        metrics = run.metrics()
        self.assertEqual(sorted(scalars), [line['step'] for line in metrics])
        for line in metrics:
            tags = TAGS + [tag for tag in SOMETIMES if tag in line]
            self.assertEqual(sorted(scalars[line['step']]), sorted(tags))
            for tag in tags:
                value = scalars[line['step']][tag]
                if line[tag] is None:
                    self.assertFalse(math.isfinite(value), (line['step'], tag))
                else:
                    self.assertEqual(value, float32(line[tag]), (line['step'], tag))

    def test_every_value_is_that_of_metrics_over_a_kill_and_a_resume(self):
        config, run = self.config(train={'steps': 30, 'eval_every': 4}, checkpoint={'every': 10, 'asynchronous': False}, execution={'watchdog_s': 300})
        job = start('train', config, *ON, ranks=2, env=holding(15))
        with self.held(job, run, 15):
            os.kill(rank_pids(self.folder)[0], signal.SIGKILL)
        self.expect(job.end(), RANK_LOST)
        killed = event_files(run)
        self.assertEqual(len(killed), 1)
        self.assertEqual(killed[0].start, 1)
        self.assertGreaterEqual(max(killed[0].scalars), 12)  # seen at once, though rank 0 had no time to say goodbye
        saved = int(run.checkpoints()[-1][len('step_'):])
        # Stopped in good order once more by fewer steps, then to the end.
        self.expect(millrace('train', config, *ON, '--set', 'train.steps=%d' % (saved + 4), ranks=2), OK)
        self.expect_metrics(as_tensorboard_sees(event_files(run)), run)
        self.expect(millrace('train', config, *ON, '--set', 'train.steps=%d' % (saved + 8), ranks=2), OK)
        files = event_files(run)
        self.assertEqual([file.start for file in files], [1, saved + 1, saved + 5])
        scalars = as_tensorboard_sees(files)
        self.assertEqual(sorted(scalars), list(range(1, saved + 9)))
        self.expect_metrics(scalars, run)
        self.assertTrue(any('eval_loss' in values for values in scalars.values()))
        times = [time for file in files for time in file.times]
        self.assertEqual(times, sorted(times))

    def test_a_run_begun_anew_puts_the_old_files_aside(self):
        config, run = self.config()
        self.expect(millrace('train', config, *ON), OK)
        self.expect(millrace('train', config, *ON, '--set', 'checkpoint.resume=never', '--set', 'train.steps=3'), OK)
        self.assertEqual(sorted(as_tensorboard_sees(event_files(run))), [1, 2, 3])
        self.assertEqual(sorted(as_tensorboard_sees(event_files(run, 'tensorboard.old-1'))), [1, 2, 3, 4, 5, 6])
        self.expect_metrics(as_tensorboard_sees(event_files(run)), run)

    def test_a_loss_that_is_not_finite_is_shown_as_such(self):
        config, run = self.config()
        self.expect(millrace('train', config, *ON, env={'MILLRACE_INJECT': '3:0:loss'}), OK)
        scalars = as_tensorboard_sees(event_files(run))
        self.assertTrue(math.isnan(scalars[3]['loss']))
        self.expect_metrics(scalars, run)

    def test_a_folder_that_cannot_be_written_is_a_warning_and_ends_nothing(self):
        config, run = self.config()
        os.mkdir(run.path)
        with open(run.file('tensorboard'), 'w') as f:
            f.write('a file where a folder should be\n')
        outcome = self.expect(millrace('train', config, *ON), OK)
        self.expect_line(outcome.err, r'^millrace: warning: cannot open \S+/tensorboard/events\.out\.tfevents\.\S+: Not a directory')
        self.assertEqual(run.steps(), [1, 2, 3, 4, 5, 6])

    def test_without_the_key_there_is_none(self):
        config, run = self.config()
        self.expect(millrace('train', config), OK)
        self.assertFalse(os.path.exists(run.file('tensorboard')))


if __name__ == '__main__':
    unittest.main(verbosity=2)
