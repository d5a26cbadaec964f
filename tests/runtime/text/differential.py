"""Our tokenizer against PyPI's: differential.py ENCODE_RECORDS TOKENIZER.json MODE... [--seed N] [--count N] [--seconds S] [--root DIR]... [--answers FILE]

Needs `pip install tokenizers`, which the test suite does not have. make_vocabularies.py makes files of real vocabularies. Modes:

  codepoints  all 1,112,064 code points alone and between a, blank, apostrophe and digit
  vocabulary  every entry: ids to text, and the text encoded again; entries in pairs
  words       long random words out of the vocabulary's fragments
  fuzz        random strings over characters that patterns, normalization and added tokens care about, and mutations of them
  corpus      the files under --root, shuffled, .gz and message catalogues too, by documents of at most 1 MB; what is not UTF-8, or was there before,
              is passed over

PyPI's answers take most of the time (1 to 3 MB/s of a core; TOKENIZERS_PARALLELISM=false keeps it to one). --answers keeps a hash of them by
batch: a later run with the same texts asks only for batches whose ids differ, so that the counts of a new program cost little, and a run that was
stopped goes on.

Prints one line per mode, `mode: texts, bytes, differences`, and the first differences in full. Exit status 1 if there is one.
"""
import argparse
import gettext
import gzip
import hashlib
import os
import random
import struct
import subprocess
import sys
import threading
import time
import zlib

import tokenizers

PLAIN, BARE, DECODE, FLUSH = 1, 2, 4, 8
BATCH_BYTES = 1 << 21


def documents(path):
    """The texts of a file: those of a message catalogue, else the file by 1 MB, uncompressed."""
    if path.endswith('.mo'):
        with open(path, 'rb') as f:
            yield '\n'.join(text for text in gettext.GNUTranslations(f)._catalog.values() if isinstance(text, str))
        return
    with (gzip.open if path.endswith('.gz') else open)(path, 'rt', encoding='utf-8', newline='') as f:
        while text := f.read(1 << 20):
            if '\0' in text[:1000]:
                return
            yield text


class Ours:
    """The filter encode_records."""

    def __init__(self, program, path):
        self.process = subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1 << 20)

    def ask(self, records, size):
        """records: [(flags, bytes)]; the answers' bytes, `size` each item."""
        def write():
            out = self.process.stdin
            for flags, text in records:
                out.write(struct.pack('<II', len(text), flags) + text)
            out.write(struct.pack('<II', 0, FLUSH))
            out.flush()
        writer = threading.Thread(target=write)
        writer.start()
        answers = []
        for _ in records:
            count = struct.unpack('<I', self.process.stdout.read(4))[0]
            answers.append(None if count == 0xffffffff else self.process.stdout.read(count * size))
        writer.join()
        return answers


def digest(parts):
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(struct.pack('<q', len(part)) + part)
    return state.digest()


class Answers:
    """Hashes of PyPI's ids by the hash of what was asked, in a file that grows."""

    def __init__(self, path):
        self.known, self.file = {}, open(path, 'ab+') if path else None
        if path:
            self.file.seek(0)
            while len(record := self.file.read(32)) == 32:
                self.known[record[:16]] = record[16:]

    def keep(self, question, answer):
        self.known[question] = answer
        if self.file:
            self.file.write(question + answer)
            self.file.flush()


class Comparison:

    def __init__(self, program, path, limits):
        self.ours, self.theirs, self.limits = Ours(program, path), tokenizers.Tokenizer.from_file(path), limits
        self.texts = self.bytes = self.differences = 0
        self.start = time.time()
        self.rng = random.Random(limits.seed)
        self.answers = Answers(limits.answers)
        with open(path, 'rb') as f:
            self.file = f.read()

    def over(self):
        return time.time() - self.start > self.limits.seconds

    def compare(self, texts):
        # Special tokens as tokens and as text, with and without the template, in turn; text in one chunk or in several.
        mode = self.rng.randrange(4)
        chunk = self.rng.choice((0, 0, 1, 2, 3, 7, 64, 1000))
        encoded = [text.encode() for text in texts]
        answers = self.ours.ask([(mode | chunk << 8, text) for text in encoded], 4)
        question = digest([self.file, bytes([mode]), *encoded])
        if None in answers or self.answers.known.get(question) != digest(answers):
            self.ask_theirs(question, mode, chunk, texts, answers)
        self.texts += len(texts)
        self.bytes += sum(map(len, encoded))

    def ask_theirs(self, question, mode, chunk, texts, answers):
        self.theirs.encode_special_tokens = bool(mode & 1)
        expected = [encoding.ids for encoding in self.theirs.encode_batch_fast(texts, add_special_tokens=not mode & 2)]
        packed = [struct.pack('<%di' % len(ids), *ids) for ids in expected]
        self.answers.keep(question, digest(packed))
        for text, answer, ids, want in zip(texts, answers, expected, packed):
            if answer != want:
                self.differences += 1
                if self.differences <= 5:
                    got = None if answer is None else list(struct.unpack('<%di' % (len(answer) // 4), answer))
                    print('DIFFERENT', mode, chunk, ascii(text[:300]), 'theirs', ids[:60], 'ours', got and got[:60], flush=True)

    def run(self, mode):
        self.texts = self.bytes = self.differences = 0
        self.start = time.time()
        batch, size, shown = [], 0, time.time()
        for text in getattr(self, mode)():
            batch.append(text)
            size += len(text) + 50
            if size > BATCH_BYTES:
                self.compare(batch)
                batch, size = [], 0
                if time.time() - shown > 60:
                    shown = time.time()
                    print('  so far: %d texts, %d bytes, %d differences' % (self.texts, self.bytes, self.differences), flush=True)
                if self.over():
                    break
        if batch:
            self.compare(batch)
        print('%s: %d texts, %d bytes, %d differences, %.0f s' %
              (mode, self.texts, self.bytes, self.differences, time.time() - self.start), flush=True)
        return self.differences

    def codepoints(self):
        for code in range(0x110000):
            if 0xd800 <= code < 0xe000:
                continue
            c = chr(code)
            yield from (c, 'a' + c + 'a', ' ' + c + ' ', "'" + c + "'", '1' + c + '1', 'a' + c + ' ', '\n' + c + '\u0301' + c)

    def vocabulary(self):
        size = self.theirs.get_vocab_size()
        ids = [i for i in range(size) if self.theirs.id_to_token(i) is not None]
        texts = [self.theirs.decode([i], skip_special_tokens=False) for i in ids]
        answers = self.ours.ask([(DECODE, struct.pack('<i', i)) for i in ids], 1)
        for i, text, answer in zip(ids, texts, answers):
            if answer.decode(errors='replace') != text:
                self.differences += 1
                print('DIFFERENT decode', i, ascii(text), answer)
        for text in texts:
            yield text
            yield text + self.rng.choice(texts)

    def fragments(self):
        texts = [self.theirs.decode([i]) for i in range(self.theirs.get_vocab_size())]
        return [text for text in texts if text.strip() and '\ufffd' not in text]

    def words(self):
        fragments = self.fragments()
        for _ in range(self.limits.count):
            kind = self.rng.randrange(3)
            n = self.rng.choice((5, 20, 60, 200)) if kind else self.rng.randrange(1, 2000)
            parts = self.rng.choices(fragments, k=n)
            yield ''.join(part.strip() if kind != 2 else part for part in parts)

    def fuzz(self):
        added = [token.content for token in self.theirs.get_added_tokens_decoder().values()]
        special = ["'s", "'S", "'\u017f", "'ll", "'LL", "'re", "'Ve", "'", ' ', '  ', '\t', '\n', '\r\n', '\r', '\xa0', '\u3000', '\u1680', '\u180e',
                   '\u2028', '\u200b', '\u200d', '\u0301', '\u0327', '\u0344', '\u1100', '\u1161', '\u11a8', '\uac00', '\u212b', '\u0958', '1', '23',
                   '\u0661', '\u2167', '\xbd', '_', '-', '...', '=', '\U0001f600', '\U0001d7ce', '\u4e2d', '\u3042', 'a', 'B', 'word', 'wordy', 'e\u0301!']
        fragments = self.fragments()
        mixed, pools = special + added, (special, added or special, fragments)
        below, choices = self.below, self.rng.choices
        last = 'seed'
        for _ in range(self.limits.count):
            kind = below(5)
            if kind == 0:
                text = ''.join(choices(mixed, k=1 + below(11)))
            elif kind == 1:
                text = ''.join([chr(self.code()) for _ in range(1 + below(9))])
            elif kind == 2:
                text = ''.join(choices(fragments, k=1 + below(7)))
            elif kind == 3:
                text = ''.join([pool[below(len(pool))] for pool in choices(pools, k=1 + below(11))])
            else:
                at, end = sorted((below(len(last) + 1), below(len(last) + 1)))
                text = last[:at] + mixed[below(len(mixed))] + last[end if below(2) else at:]
            last = text[:60]
            yield text

    def below(self, end):
        """Any of 0 to end - 1; four times as fast as randrange, which was a third of a run's time."""
        return int(self.rng.random() * end)

    def code(self):
        code = self.below((0x80, 0x3000, 0x10000, 0x110000)[self.below(4)])
        return 0x20 if 0xd800 <= code < 0xe000 else code

    def files(self):
        """The paths under all roots, shuffled: what a run reads before its time is over is a sample of all of them."""
        paths = []
        for root in self.limits.root:
            for folder, folders, names in os.walk(root):
                folders.sort()
                paths += [os.path.join(folder, name) for name in sorted(names)]
        random.Random(self.limits.seed).shuffle(paths)
        return [path for path in paths if not os.path.islink(path) and os.path.isfile(path)]

    def corpus(self):
        seen = set()
        for path in self.files():
            try:
                for text in documents(path):
                    key = digest([text.encode()])
                    if key not in seen:
                        seen.add(key)
                        yield text
            except (ValueError, LookupError, OSError, EOFError, zlib.error):
                continue  # no text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('program')
    parser.add_argument('tokenizer')
    parser.add_argument('modes', nargs='+', choices=('codepoints', 'vocabulary', 'words', 'fuzz', 'corpus'))
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--count', type=int, default=10000, help='texts of words and fuzz')
    parser.add_argument('--seconds', type=float, default=1e9, help='the most that a mode takes')
    parser.add_argument('--root', action='append', default=[])
    parser.add_argument('--answers', metavar='FILE', help="hashes of PyPI's ids, kept for the next run")
    arguments = parser.parse_args()
    print('tokenizers', tokenizers.__version__, os.path.basename(arguments.tokenizer), 'seed', arguments.seed, flush=True)
    comparison = Comparison(arguments.program, arguments.tokenizer, arguments)
    sys.exit(1 if sum([comparison.run(mode) for mode in arguments.modes]) else 0)


if __name__ == '__main__':
    main()
