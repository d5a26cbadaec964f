"""Tokenizers side by side, one thread each, in turn: tokenizers_speed.py TOKENIZER_SPEED TOKENIZER.json NAME=FILE...

Needs `pip install tokenizers tiktoken gigatoken xxhash`. MB (10^6 bytes) of text per second of processor time, of the first pass (cold) and of the
best of two more; whether the ids are those of `tokenizers`. Each of the peers is called as its users do, from Python; ours is the program
tools/bench:tokenizer_speed.
"""
import json
import os
import subprocess
import sys
import time

import gigatoken
import numpy
import tiktoken
import tokenizers
import xxhash


def digest(ids):
    return xxhash.xxh3_128_hexdigest(ids.tobytes())


def byte_of_symbol():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def tiktoken_of(path):
    with open(path, encoding='utf-8') as f:
        document = json.load(f)
    symbols = byte_of_symbol()
    ranks = {bytes(symbols[c] for c in token): i for token, i in document['model']['vocab'].items() if all(c in symbols for c in token)}
    pre = document['pre_tokenizer']
    pattern = pre['pretokenizers'][0]['pattern']['Regex'] if pre['type'] == 'Sequence' else \
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    special = {token['content']: token['id'] for token in document['added_tokens']}
    ranks = {token: i for token, i in ranks.items() if i not in special.values()}
    return tiktoken.Encoding('bench', pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


def documents(data):
    """As tokenizer_speed cuts them."""
    texts, begin = [], 0
    while begin < len(data):
        end = data.find(b'\n', begin + 100_000) + 1 or len(data)
        texts.append(data[begin:end].decode())
        begin = end
    return texts


def passes(encode, texts, count):
    """The ids of all texts in one array, and MB/s of each pass."""
    ids, rates, size = None, [], sum(len(text.encode()) for text in texts)
    for _ in range(count):
        parts, seconds = [], 0
        for text in texts:
            begin = time.process_time()
            part = encode(text)
            seconds += time.process_time() - begin
            parts.append(numpy.asarray(part, dtype=numpy.int32))
        ids = numpy.concatenate(parts)
        rates.append(size / seconds / 1e6)
    return ids, rates


def main():
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    os.environ['RAYON_NUM_THREADS'] = '1'
    program, path = sys.argv[1:3]
    for item in sys.argv[3:]:
        name, file = item.split('=', 1)
        with open(file, 'rb') as f:
            text = documents(f.read())
        theirs = tokenizers.Tokenizer.from_file(path)
        ids, rates = passes(lambda t: theirs.encode(t, add_special_tokens=False).ids, text, 1)
        expected = digest(ids)
        rows = [('tokenizers ' + tokenizers.__version__, rates[0], rates[0], True)]
        other = tiktoken_of(path)
        ids, rates = passes(other.encode_ordinary, text, 2)
        rows.append(('tiktoken ' + tiktoken.__version__, rates[0], max(rates[1:]), digest(ids) == expected))
        giga = gigatoken.Tokenizer(path)
        ids, rates = passes(giga.encode, text, 3)
        rows.append(('gigatoken', rates[0], max(rates[1:]), digest(ids) == expected))
        ours = json.loads(subprocess.run([program, path, file], stdout=subprocess.PIPE, check=True).stdout)
        rows.append(('Millrace', ours['cold'], max(ours['warm'], ours['warm_again']), ours['ids'] == expected))
        print('%s: %d bytes, %d tokens' % (name, ours['bytes'], ours['tokens']))
        for row in rows:
            print('  %-20s cold %7.1f MB/s  warm %7.1f MB/s  ids %s' % (row[0], row[1], row[2], 'equal' if row[3] else 'DIFFERENT'), flush=True)


if __name__ == '__main__':
    main()
