"""Training data that are missing or damaged: exit code 3, and one line that names the file."""
import os
import struct
import unittest

from harness import BAD_DATA, OK, CliTest, millrace, program, raw_mpirun

VOCAB = 64


def raw_tokens(count):
    """nanoGPT's format: little-endian uint16, and nothing else."""
    return struct.pack('<%dH' % count, *[(7 * i + i // 13) % VOCAB for i in range(count)])


def llmc_tokens(count, says=None):
    """llm.c's format: 256 int32 of header, then the tokens."""
    header = [20240520, 1, count if says is None else says] + [0] * 253
    return struct.pack('<256i', *header) + raw_tokens(count)


class Data(CliTest):

    def tokens(self, name, content):
        path = self.path(name)
        with open(path, 'wb') as f:
            f.write(content)
        return path

    def train(self, path, *more, start=millrace):
        config, _ = self.config(data={'kind': 'tokens', 'path': path}, model={'vocab': VOCAB})
        return start('train', config, *more) if start is not millrace else millrace('train', config, *more, ranks=2)

    def expect_named(self, outcome, path, what):
        self.expect(outcome, BAD_DATA)
        self.expect_line(outcome.err, '%s.*%s' % (path, what))
        ours = [line for line in outcome.err.splitlines() if line.startswith('millrace:')]
        self.assertEqual(len(ours), 1, outcome)
        self.assertEqual(self.status_steps(outcome.out), [])

    def test_good_tokens_train(self):
        for name, content in (('raw.bin', raw_tokens(2000)), ('llmc.bin', llmc_tokens(2000))):
            self.expect(self.train(self.tokens(name, content)), OK)

    def test_a_file_that_is_cut_off_is_named(self):
        path = self.tokens('cut.bin', llmc_tokens(2000)[:-400])
        self.expect_named(self.train(path), path, '2000')
        path = self.tokens('more.bin', llmc_tokens(2000, says=1900))
        self.expect_named(self.train(path), path, '1900')
        path = self.tokens('header.bin', llmc_tokens(0)[:100] )
        self.expect(self.train(path), BAD_DATA)

    def test_an_odd_number_of_bytes_is_named(self):
        path = self.tokens('odd.bin', raw_tokens(2000)[:-1])
        self.expect_named(self.train(path), path, '3999 bytes')

    def test_an_id_outside_the_vocabulary_is_named_with_its_place(self):
        content = bytearray(raw_tokens(2000))
        struct.pack_into('<H', content, 2 * 700, VOCAB)
        path = self.tokens('id.bin', content)
        outcome = self.train(path)
        self.expect_named(outcome, path, str(VOCAB))
        self.assertIn('1400', outcome.err)  # its byte

    def test_too_little_for_one_window_is_said(self):
        path = self.tokens('short.bin', raw_tokens(30))
        self.expect_named(self.train(path), path, '')

    def test_missing_and_empty_are_said_once_however_the_ranks_are_started(self):
        missing = self.path('missing')
        empty = self.path('empty')
        os.mkdir(empty)
        for path in (missing, empty):
            config, _ = self.config(data={'path': path})
            self.expect_named(millrace('train', config, ranks=2), path, '')
            self.expect_named(raw_mpirun(3, 'train', config), path, '')
            self.expect_named(program('train', config), path, '')

    def test_a_file_that_only_one_rank_misses_is_said_by_it(self):
        # Each rank sees a folder of its own under the same name.
        config, _ = self.config(data={'path': self.path('here/data.txt')})
        here = self.path('here')
        wrapper = self.path('rank.sh')
        with open(wrapper, 'w') as f:
            f.write('#!/bin/sh\ncd "%s/$OMPI_COMM_WORLD_RANK" && exec "$@"\n' % here)
        os.chmod(wrapper, 0o755)
        for rank in (0, 1):
            os.makedirs(os.path.join(here, str(rank)))
        with open(os.path.join(here, '0', 'data.txt'), 'w') as f:
            f.write('only rank 0 has it. ' * 500)
        from harness import Job, PROGRAM, environment
        outcome = Job(['mpirun', '-n', '2', '--oversubscribe', wrapper, PROGRAM, 'train', config, '--set', 'data.path=data.txt'],
                      environment()).end()
        self.expect(outcome, BAD_DATA)
        self.expect_line(outcome.err, '^millrace: rank 1: data.txt')


if __name__ == '__main__':
    unittest.main(verbosity=2)
