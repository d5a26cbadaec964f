#!/usr/bin/env python3
"""test_excerpt.py LOG [LINES]: what went wrong in the log of a test that did not pass.

At most LINES lines (12) of at most 160 characters: of Python's unittest the line FAIL: or ERROR:,
the last line of code of the traceback and the exception; of Catch2 the case, the line FAILED: and
its expansion; of a sanitizer what it found, the first frame that is ours, and the summary; of a
script its lines FAILED:. Of a log that has none of these the last lines. Where a log has more
failures than there is room, each gives up its last lines first, and the rest are counted.
"""
import re
import sys

LINES, WIDTH = 12, 160
RULE = re.compile(r"[-=.~]{20,}$")
UNITTEST = re.compile(r"(?:FAIL|ERROR): \S+")
CATCH = re.compile(r"\S+:\d+: FAILED:")
SANITIZER = re.compile(r"==\d+==ERROR: \w+Sanitizer|WARNING: ThreadSanitizer:|.*: runtime error: |"
                       r"MPI_ABORT was invoked|.*Assertion .* failed")
FRAME = re.compile(r"\s*#\d+ .* ((comm|kernels|models|runtime|tests|tools)/\S+:\d+)")
SCRIPT = re.compile(r"FAILED: ")
# Folders of Bazel, of a test's own and of this machine: long, and the same in all lines.
FOLDERS = re.compile(r"/\S*/(?:\w+\.runfiles/millrace|execroot/millrace(?:/_tmp/\w+)?)/")


def shorten(line):
    line = FOLDERS.sub("", line.rstrip().replace("\t", " "))
    return line if len(line) <= WIDTH else line[:WIDTH - 3] + "..."


def until(lines, begin, stop):
    """The lines from `begin` up to the first, but for that, of which `stop` holds."""
    end = begin + 1
    while end < len(lines) and not stop(lines[end]):
        end += 1
    return lines[begin:end]


def of_unittest(lines, i):
    """The exception before what led to it: a short excerpt loses its end."""
    if i == 0 or not re.match(r"={20,}$", lines[i - 1]):
        return []  # a program's own word
    body = until(lines, i, lambda line: re.match(r"={20,}$|Ran \d+ test", line))
    trace = max((k for k, line in enumerate(body) if line.startswith("Traceback (")), default=None)
    if trace is None:
        return body[:1]
    places = [k for k in range(trace, len(body)) if re.match(r'  File ".*", line \d+', body[k])]
    ours = [k for k in places if not re.search(r'File "(<|/usr/|.*/lib/python)', body[k])] or places
    raised = next((k for k in range(trace + 1, len(body)) if body[k] and body[k][0] not in " \t"), None)
    message = [] if raised is None else [line for line in body[raised:] if line.strip() and not RULE.match(line)]
    place = body[ours[-1]:ours[-1] + 2] if ours else []
    return [body[0].split(" (")[0]] + message[:1] + place + message[1:4]


def of_catch(lines, i):
    """With the name of the case: the line between the last two rules before the place of its source."""
    rules = [k for k in range(i) if re.match(r"-{20,}$", lines[k])]
    name = []
    if len(rules) >= 2:
        name = until(lines, rules[-2] + 1, RULE.match)
    body = until(lines, i, lambda line: not line.strip() or RULE.match(line) or CATCH.match(line))
    return ["case: " + " / ".join(line.strip() for line in name)] * bool(name) + body[:8]


def of_sanitizer(lines, i):
    body = until(lines, i, lambda line: line.startswith("SUMMARY: ") or SANITIZER.match(line))
    frame = next((line for line in body if FRAME.match(line)), None)
    summary = next((line for line in lines[i + len(body):][:1] if line.startswith("SUMMARY: ")), None)
    return [line for line in (body[0], frame, summary) if line is not None]


READERS = ((UNITTEST, of_unittest), (CATCH, of_catch), (SANITIZER, of_sanitizer),
           (SCRIPT, lambda lines, i: lines[i:i + 1]))


def excerpt(text, most=LINES):
    lines = text.splitlines()
    found = [read(lines, i) for i, line in enumerate(lines) for pattern, read in READERS if pattern.match(line)]
    found = [[shorten(line) for line in block] for block in found if block]
    for before, block in reversed(list(zip(found, found[1:]))):
        if block[0] == before[0] and block[0].startswith("case: "):
            del block[0]
    if not found:
        return [shorten(line) for line in lines if line.strip()][-most:]
    left_out = len(found) - most + 1 if len(found) > most else 0
    shown = found[:len(found) - left_out]
    room = most - bool(left_out)
    while sum(map(len, shown)) > room:
        max(shown, key=len).pop()
    rest = ["and %d more failures" % left_out] if left_out else []
    return [line for block in shown for line in block] + rest


def main():
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        for line in excerpt(log.read(), int(sys.argv[2]) if len(sys.argv) > 2 else LINES):
            print(line)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        print(f"the log cannot be read: {error}")
