"""Pages of runs and plans in a real browser, headless Chromium: at widths of phones and of desks nothing is wider than the screen, every section and
picture is drawn."""
import html
import json
import os
import re
import shutil
import struct
import subprocess
import unittest
import zlib

from harness import OK, CliTest, millrace, program

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')
WIDTHS = (360, 390, 768, 1280)
HEIGHT = 1600
# Sent by the page to the frame's parent, which writes it down: frames of files may not look into each other.
PROBE = '''<script>
const colours = (canvas) => {
  const pixels = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return new Set(pixels);
};
addEventListener('load', () => {
  const sections = [...document.querySelectorAll('section, header')];
  parent.postMessage(JSON.stringify({
    width: innerWidth, scroll: document.documentElement.scrollWidth,
    empty: sections.filter(s => s.offsetHeight < 10 || s.offsetWidth < 100).map(s => s.id || s.tagName),
    outside: sections.filter(s => s.getBoundingClientRect().right > innerWidth + 0.5).map(s => s.id || s.tagName),
    sections: sections.length, curves: document.querySelectorAll('svg polyline').length,
    pictures: [...document.querySelectorAll('canvas')].map(c => c.parentNode.id + ' ' + c.classList[1]),
    thin: [...document.querySelectorAll('canvas')].filter(c => c.clientWidth < 0.5 * innerWidth || c.clientHeight < 60 || colours(c).size < 12)
      .map(c => c.parentNode.id),
    requests: performance.getEntriesByType('resource').length
  }), '*');
});</script>'''
FRAME = '''<!doctype html><body style="margin:0"><pre id="said" hidden></pre>
<iframe src="%s" width="%d" height="%d" style="border:0;display:block"></iframe>
<script>addEventListener('message', e => { document.getElementById('said').textContent = e.data; });</script></body>'''


def pixels(path):
    """(width, height, rows of bytes, bytes per pixel) of an 8-bit PNG as Chromium writes it."""
    with open(path, 'rb') as file:
        data = file.read()
    assert data[:8] == b'\x89PNG\r\n\x1a\n'
    at, packed = 8, b''
    while at < len(data):
        length, kind = struct.unpack('>I4s', data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b'IHDR':
            width, height, depth, colour = struct.unpack('>IIBB', body[:10])
            assert depth == 8 and colour in (2, 6)
        packed += body if kind == b'IDAT' else b''
        at += length + 12
    raw, step = zlib.decompress(packed), 3 if colour == 2 else 4
    rows, before = [], bytes(width * step)
    for y in range(height):
        line = raw[y * (width * step + 1):(y + 1) * (width * step + 1)]
        row = bytearray(line[1:])
        for i in range(len(row)):
            a, b, c = row[i - step] if i >= step else 0, before[i], before[i - step] if i >= step else 0
            if line[0] == 1:
                row[i] = (row[i] + a) & 255
            elif line[0] == 2:
                row[i] = (row[i] + b) & 255
            elif line[0] == 3:
                row[i] = (row[i] + (a + b) // 2) & 255
            elif line[0] == 4:
                p = a + b - c
                near = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
                row[i] = (row[i] + near) & 255
        before = bytes(row)
        rows.append(before)
    return width, height, rows, step


def trace(path):
    """A step of one rank, timed op by op."""
    ops = [{'ph': 'X', 'pid': 0, 'tid': i % 3, 'name': 'op %d' % i, 'cat': ('matmul', 'all_gather', 'reduce_scatter')[i % 3], 'ts': 10 * i, 'dur': 25}
           for i in range(60)]
    with open(path, 'w') as file:
        json.dump({'displayTimeUnit': 'ms', 'traceEvents': ops,
                   'otherData': {'plan_hash': '', 'device': 'cpu', 'ranks': 1, 'trace': {'step': 'eager'}}}, file)


class Screens(CliTest):

    def chromium(self, frame, *arguments):
        command = [CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--virtual-time-budget=3000',
                   '--user-data-dir=' + os.path.join(self.folder, 'browser'), *arguments, 'file://' + frame]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=True).stdout

    def framed(self, page, width):
        with open(page, encoding='utf-8') as file:
            text = file.read()
        self.assertEqual(text.count('</body>'), 1)
        copy, frame = os.path.join(self.folder, 'copy.html'), os.path.join(self.folder, 'frame.html')
        with open(copy, 'w', encoding='utf-8') as file:
            file.write(text.replace('</body>', PROBE + '</body>'))
        with open(frame, 'w', encoding='utf-8') as file:
            file.write(FRAME % ('copy.html', width, HEIGHT))
        return frame

    def measured(self, page, width):
        said = re.search(r'<pre id="said"[^>]*>(.*?)</pre>', self.chromium(self.framed(page, width), '--dump-dom'), re.DOTALL)
        self.assertTrue(said and said[1], 'the page said nothing')
        return json.loads(html.unescape(said[1]))

    def check_widths(self, page, curves, pictures):
        for width in WIDTHS:
            with self.subTest(page=page, width=width):
                found = self.measured(page, width)
                self.assertEqual(found['width'], width)
                self.assertLessEqual(found['scroll'], width)
                self.assertEqual((found['empty'], found['outside'], found['requests']), ([], [], 0))
                self.assertGreater(found['sections'], 4)
                self.assertGreaterEqual(found['curves'], curves)
                self.assertEqual(found['pictures'], pictures)
                self.assertEqual(found['thin'], [])

    def test_at_every_width_all_of_a_plans_page_is_there(self):
        config, _ = self.config()
        page = self.path('plan.html')
        self.expect(program('plan', config, '--world', '2', '--html', page), OK)
        self.check_widths(page, 0, ['memory-map map', 'memory-map live', 'timeline lanes'])

    def test_at_every_width_all_of_the_page_is_there(self):
        config, run = self.config(train={'eval_every': 2})
        self.expect(millrace('train', config, ranks=2), OK)
        trace(run.file('timeline.json'))
        self.expect(program('report', run.path), OK)
        page = run.file('report.html')
        self.check_widths(page, 3, ['arena map', 'arena live', 'timeline-planned lanes', 'timeline-rank-0 lanes'])
        # And that this would be seen.
        with open(page, encoding='utf-8') as file:
            text = file.read()
        wide = os.path.join(self.folder, 'wide.html')
        with open(wide, 'w', encoding='utf-8') as file:
            file.write(text.replace('</body>', '<div style="width:2000px">x</div></body>'))
        self.assertGreater(self.measured(wide, 390)['scroll'], 390)

        shot = os.path.join(self.folder, 'shot.png')
        self.chromium(self.framed(page, 390), '--screenshot=' + shot, '--window-size=500,%d' % HEIGHT)
        width, height, rows, step = pixels(shot)
        self.assertEqual((width, height), (500, HEIGHT))
        # Each eighth of the phone's page shows something, in more colours than a background has.
        for part in range(8):
            seen = {row[x * step:x * step + 3] for row in rows[part * height // 8:(part + 1) * height // 8] for x in range(390)}
            self.assertGreater(len(seen), 10, 'eighth %d of the page' % part)
        self.assertEqual({row[x * step:x * step + 3] for row in rows for x in range(392, 500)}, {b'\xff\xff\xff'})


if __name__ == '__main__':
    unittest.main(verbosity=2)
