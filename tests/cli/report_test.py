"""A run as a page: that `report` shows what the run's files say, escapes what it shows, and refuses what is no run."""
import html.parser
import json
import os
import re
import shutil
import unittest

from harness import BAD_CONFIG, BAD_DATA, IO_FAILED, OK, CliTest, RunDir, millrace, program, truncate

VOID = {'meta', 'br'}
STEPS = 6
CONSTANT = {'schedule': {'kind': 'constant', 'warmup': 0, 'min_lr': 0}}


class Page(html.parser.HTMLParser):
    """Every element by id with its text; fails on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts, self.polylines, self.titles, self.errors = [], [], {}, {}, {}, []
        self.tables, self.scripts, self.ids = {}, [], set()
        self.feed(text)
        self.close()
        if self.open:
            self.errors.append('not closed: %s' % self.open)
        data = json.loads(self.scripts[0])
        self.steps, self.pictures = data['steps'], {picture['at']: picture for picture in data['pictures']}
        for at in self.pictures:
            if at not in self.ids:
                self.errors.append('no place for the picture %s' % at)

    def within(self):
        return next((i for _, i in reversed(self.open) if i), None)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.ids.add(dict(attributes).get('id'))
        if tag not in VOID:
            self.open.append((tag, dict(attributes).get('id')))
        if tag == 'tr':
            self.tables.setdefault(self.within(), []).append([])
        if tag in ('td', 'th'):
            self.tables[self.within()][-1].append('')

    def handle_startendtag(self, tag, attributes):
        values = dict(attributes)
        self.elements.append((tag, values))
        if tag == 'polyline':
            points = [tuple(float(v) for v in p.split(',')) for p in values['points'].split(' ')]
            self.polylines.setdefault((self.within(), values['class']), []).append(points)

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.errors.append('</%s> closes %s at %s' % (tag, self.open[-1:], self.getpos()))
        else:
            self.open.pop()

    def handle_data(self, data):
        within = self.within()
        if self.open and self.open[-1][0] == 'script':
            return self.scripts.append(data)
        if any(tag == 'title' for tag, _ in self.open):
            self.titles.setdefault(within, []).append(data)
            return
        self.texts[within] = self.texts.get(within, '') + data
        if any(tag in ('td', 'th') for tag, _ in self.open):
            self.tables[within][-1][-1] += data


def trace(path, events, **other):
    """A run's timeline.json: events are (rank, stream, name, kind, begin in us, us)."""
    about = {'plan_hash': '', 'device': 'cpu', 'ranks': 2, 'step': 3, 'trace': {'step': 'eager', 'event_nodes': 0}}
    about.update(other)
    names = [{'ph': 'M', 'pid': rank, 'tid': 0, 'name': 'process_name', 'args': {'name': 'rank %d' % rank}} for rank in range(2)]
    ops = [{'ph': 'X', 'pid': rank, 'tid': stream, 'name': name, 'cat': kind, 'ts': begin, 'dur': us} for rank, stream, name, kind, begin, us in events]
    with open(path, 'w') as f:
        json.dump({'displayTimeUnit': 'ms', 'otherData': about, 'traceEvents': names + ops}, f)


class Report(CliTest):
    script = ''  # the same on every page

    def train(self, name='run', ranks=2, env=None, sets=(), **sections):
        sections.setdefault('optimizer', CONSTANT)
        config, run = self.config(os.path.basename(name) + '.json', run=name, **sections)
        words = [word for assignment in sets for word in ('--set', assignment)]
        self.expect(millrace('train', config, *words, ranks=ranks, env=env), OK)
        return run

    def page(self, run, *words):
        self.expect(program('report', run.path, *words), OK)
        with open(words[1] if words else run.file('report.html'), encoding='utf-8') as f:
            text = f.read()
        page = Page(text)
        self.assertEqual(page.errors, [])
        # Nothing is fetched, and nothing runs but what draws the pictures.
        self.assertEqual({tag for tag, _ in page.elements} & {'link', 'img', 'iframe', 'object', 'a'}, set())
        self.assertEqual([values for tag, values in page.elements if tag == 'script'], [{'id': 'data', 'type': 'application/json'}, {}])
        self.assertEqual(page.scripts[1], self.script or page.scripts[1])
        Report.script = page.scripts[1]
        self.assertIn("default-src 'none'", [values.get('content', '') for tag, values in page.elements if tag == 'meta'][2])
        self.assertFalse([a for _, values in page.elements for a in values if a.startswith('on') or a in ('src', 'href')])
        self.assertNotRegex(text, r'https?://|@import|url\(')
        return page, text

    def check_curve(self, page, chart, values):
        """The line has a point for each step, at the height of its value between least and most."""
        (points,) = page.polylines[(chart, 'main')]
        self.assertEqual(len(points), len(values))
        low, high = min(values), max(values)
        for i, ((x, y), value) in enumerate(zip(points, values)):
            self.assertAlmostEqual(x, 1000 * i / (len(values) - 1), delta=0.01)
            self.assertAlmostEqual(y, 200 * (1 - (value - low) / (high - low)), delta=0.01)

    def test_every_section_has_the_numbers_of_the_files(self):
        run = self.trained('evaluated', train={'steps': STEPS, 'micro_batch': 2, 'accumulate': 2, 'eval_every': 2})
        page, _ = self.page(run)
        metrics, summary = run.metrics(), run.summary()
        for column in ('loss', 'grad_norm', 'lr', 'tokens_per_s', 'step_ms'):
            values = [line[column] for line in metrics]
            if column == 'loss':  # one scale with the held-out losses
                held_out = [line['eval_loss'] for line in metrics if 'eval_loss' in line]
                low, high = min(values + held_out), max(values + held_out)
                (points,) = page.polylines[('loss', 'main')]
                (others,) = page.polylines[('loss', 'other')]
                for drawn, wanted in ((points, values), (others, held_out)):
                    self.assertEqual(len(drawn), len(wanted))
                    for (_, y), value in zip(drawn, wanted):
                        self.assertAlmostEqual(y, 200 * (1 - (value - low) / (high - low)), delta=0.01)
                self.assertEqual(len(values), STEPS)
                self.assertEqual(len(held_out), STEPS // 2)
                self.assertIn('held-out loss: last %.6g (step 6)' % held_out[-1], page.texts['loss'])
            else:
                self.check_curve(page, column, values)
            self.assertEqual(len(page.titles[column]), STEPS)
        for column in ('loss', 'grad_norm', 'lr'):
            values = [line[column] for line in metrics]
            for word, value in (('least', min(values)), ('most', max(values))):
                self.assertIn('%s %.6g (step %d)' % (word, value, 1 + values.index(value)), page.texts[column])
            for step, (title, value) in enumerate(zip(page.titles[column], values), 1):
                self.assertTrue(title.startswith('step %d\n%s %.6g' % (step, column, value)), title)
        self.assertIn('Ended in good order after step 6. train.steps is 6.', page.texts['state'])

        predicted = {row[0]: row[1:] for row in page.tables['predicted']}
        for name in ('arena_bytes', 'wire_bytes'):
            self.assertEqual(predicted[name][:2], [str(summary['predicted'][name]), str(summary['measured'][name])])
        self.assertGreater(summary['measured']['wire_bytes'], 0)
        self.assertEqual(predicted['gathers'][1], str(summary['measured']['counters']['gathers']))
        self.assertIn(summary['predicted']['machine'], page.texts['predicted'])

        keys = {row[0]: row[1:] for row in page.tables['configuration']}
        with open(run.file('config.json')) as f:
            recorded = json.load(f)['keys']
        self.assertEqual(set(keys) - {'key'}, set(recorded))
        for key, value in recorded.items():
            self.assertEqual((json.loads(keys[key][0]), keys[key][1]), (value['value'], value['origin']))

        hashes = [row[-1] for row in page.tables['hashes']]
        for value in [*summary['plan_stages'].values(), summary['param_hash'], summary['optimizer_hash'], summary['plan_hash']]:
            self.assertIn(value, hashes)
        classes = {row[0] for row in page.tables['memory']}
        self.assertTrue({'parameters', 'gradients', 'optimizer', 'activations'} <= classes, classes)
        stalls = [line['save_stall_ms'] for line in metrics if 'save_stall_ms' in line]
        self.assertEqual(len(stalls), 2)  # at steps 2 and 4; what the last save costs has no line
        self.assertIn('Training waited 2 times for a save, the last one apart: %.4g ms in the median, %.4g ms at most.'
                      % (max(stalls), max(stalls)), page.texts['calls'])
        checkpoints = [row[0] for row in page.tables['calls'] if row[-1] == 'usable']
        self.assertEqual(['step_%08d' % int(step) for step in reversed(checkpoints)], run.checkpoints())
        self.assertIn('None: every update was applied.', page.texts['skipped'])
        self.assertIn(['backend', 'cpu'], page.tables['environment'])
        self.assertIn(['ranks', '2'], page.tables['environment'])

    def test_the_same_run_gives_the_same_page_where_it_is_asked_for(self):
        run = self.trained('evaluated', train={'steps': STEPS, 'micro_batch': 2, 'accumulate': 2, 'eval_every': 2})
        _, first = self.page(run)
        _, second = self.page(run, '--out', self.path('page.html'))
        self.assertEqual(first, second)
        self.expect(program('report', run.path, '--out', self.path('none', 'page.html')), IO_FAILED)

    def test_a_skipped_step_and_a_resumed_run(self):
        run = self.train(env={'MILLRACE_INJECT': '3:1:loss'}, sets=['train.steps=4'])
        run = self.train(sets=['optimizer.lr=0.02'])
        page, _ = self.page(run)
        self.assertIn(['3', 'loss on rank 1'], page.tables['skipped'])
        # The line is broken at step 3.
        self.assertEqual([len(points) for points in page.polylines[('loss', 'main')]], [2, 3])
        self.assertIn('step 3: update skipped: loss on rank 1', page.titles['loss'])
        self.assertIn('resumed after step 4 with another configuration', page.titles['loss'])
        calls = page.tables['calls']
        self.assertIn(['0', 'the run began', '2', 'cpu'], calls)
        self.assertIn(['4', 'resumed with another configuration', '2', 'cpu'], calls)
        self.assertIn('The last call went on after step 4.', page.texts['calls'])
        rates = [row for row in page.tables['configuration'] if row[0] == 'optimizer.lr']
        self.assertEqual([row[1] for row in rates], ['0.01', 'after step 4: 0.02'])
        self.assertEqual(rates[1][2], '--set')

    def test_names_are_text_and_not_markup(self):
        name = '<script>alert(1)</script>&"\''
        run = self.train(name.replace('/', '_'), ranks=1, sets=['train.steps=1'])
        shown = os.path.basename(run.path)
        page, text = self.page(run)
        self.assertEqual(text.count('<script'), 2)
        self.assertIn('&lt;script&gt;alert(1)&lt;_script&gt;&amp;&quot;&#39;', text)
        self.assertIn('Millrace run ' + shown, page.titles[None])
        self.assertIn(shown, page.texts[None])
        # One step is a dot, with nothing to draw a line to.
        self.assertEqual([len(points) for points in page.polylines[('loss', 'main')]], [1])
        with open(run.file('metrics.jsonl')) as f:
            line = json.loads(f.read())
        line.update(step=2, loss=None, offender='</title><img src=x onerror=alert(1)>\x01')
        with open(run.file('metrics.jsonl'), 'a') as f:
            f.write(json.dumps(line) + '\n')
        page, text = self.page(run)
        self.assertNotIn('<img', text)
        self.assertIn(['2', '</title><img src=x onerror=alert(1)>\ufffd'], page.tables['skipped'])

    def test_memory_is_what_plan_says_class_by_class(self):
        run = self.trained('evaluated', train={'steps': STEPS, 'micro_batch': 2, 'accumulate': 2, 'eval_every': 2})
        page, _ = self.page(run)
        with open(run.file('config.json')) as f:
            keys = json.load(f)['keys']
        sets = [word for key in ('train.micro_batch', 'train.accumulate', 'train.eval_every') for word in ('--set', '%s=%s' % (key, keys[key]['value']))]
        config, _ = self.config(optimizer=CONSTANT)
        plan = self.expect(program('plan', config, '--world', '2', *sets), OK).out
        plan = plan[plan.index('Memory of one rank'):].splitlines()
        rows = {row[0]: row[1:3] for row in page.tables['memory'] if len(row) == 4}
        del rows['class']
        self.assertGreater(len(rows), 4)
        for name, (most, at_peak) in rows.items():
            line = next(line for line in plan if re.match(r' +%s {2,}\d' % re.escape(name), line))
            self.assertEqual(re.split(r' {2,}', line.strip())[1:3], [most, at_peak])
        self.assertTrue(any(most != at_peak for most, at_peak in rows.values()), rows)

    def test_memory_map_of_the_planned_step(self):
        run = self.trained('evaluated', train={'steps': STEPS, 'micro_batch': 2, 'accumulate': 2, 'eval_every': 2})
        page, _ = self.page(run)
        self.assertEqual((page.pictures['arena']['kind'], page.pictures['arena']['step']), ('memory', 'planned'))
        step = page.steps['planned']
        self.assertGreater(len(step['buffers']), 20)
        at = [0] * step['end']
        for name, size, cls, live, offsets in step['buffers']:
            self.assertIn(len(offsets), (1, len(live) // 2), name)
            self.assertTrue(min(offsets) >= 0 and max(offsets) + size <= step['arena'], name)
            for begin, end in zip(live[::2], live[1::2]):
                self.assertTrue(0 <= begin < end <= step['end'], name)
                for position in range(begin, end):
                    at[position] += (size + 255) // 256 * 256
        self.assertEqual(step['peak'], at.index(max(at)))
        classes = {row[0] for row in page.tables['memory'] if len(row) == 4} - {'class'}
        self.assertEqual({step['classes'][buffer[2]] for buffer in step['buffers'] if buffer[3]}, classes)

    def test_planned_and_measured_timelines(self):
        run = self.train(ranks=2, sets=['train.steps=3'])
        page, _ = self.page(run)
        self.assertIn('train --trace-step', page.texts['timeline'])
        self.assertIn(run.summary()['predicted']['machine'], page.texts['timeline-planned'])
        planned = page.steps['planned']
        end = max(time for entry in planned['schedule'] for time in entry['t'])
        self.assertAlmostEqual(end / 1e6, run.summary()['predicted']['step_ms'], delta=1e-6 * end / 1e3)
        self.assertAlmostEqual(page.pictures['timeline-planned']['until'] * 1e9, end, delta=1)
        self.assertEqual({op[1] for body in planned['bodies'] for op in body['ops']}, {0, 1, 2})  # with gathers and reductions

        us = end / 1e3
        events = [(0, 0, 'h.0/up', 'matmul', 7, us / 4), (1, 1, '<i>', 'all_gather', 7 + us / 2, us)]
        trace(run.file('timeline.json'), events, plan_hash=run.summary()['plan_hash'])
        page, text = self.page(run)
        for words in ('another plan', 'one scale', 'train --trace-step'):
            self.assertNotIn(words, page.texts['timeline'])
        self.assertIn('Measured in step 3 on cpu, eager, rank 0', page.texts['timeline-rank-0'])
        for rank, name, kind, begin, length in ((0, 'h.0/up', 'matmul', 0, us / 4), (1, '<i>', 'all_gather', us / 2, us)):
            picture, step = page.pictures['timeline-rank-%d' % rank], page.steps['rank-%d' % rank]
            self.assertEqual((picture['kind'], picture['step']), ('timeline', 'rank-%d' % rank))
            self.assertAlmostEqual(picture['until'] * 1e6, 1.5 * us, delta=1)  # one scale for all
            ((kind_index, stream, label, *_),) = step['bodies'][0]['ops']
            self.assertEqual((step['kinds'][kind_index], stream, label), (kind, rank, name))
            ((first, last),) = [entry['t'] for entry in step['schedule']]
            self.assertAlmostEqual(first / 1e3, begin, delta=0.01)
            self.assertAlmostEqual(last / 1e3, begin + length, delta=0.01)
        self.assertAlmostEqual(page.pictures['timeline-planned']['until'] * 1e6, 1.5 * us, delta=1)
        self.assertNotIn('<i>', text)
        self.assertEqual(text, self.page(run)[1])

        # Another plan's, much longer, of more ranks than are shown; and a bench's, which has no step.
        trace(run.file('timeline.json'), [(rank, 0, 'x', 'norm', 0, 50 * us) for rank in range(6)], ranks=6)
        page, _ = self.page(run)
        self.assertIn('another plan', page.texts['timeline'])
        self.assertIn('Not on one scale: the measured step is 50 times as long', page.texts['timeline'])
        self.assertIn('2 more ranks', page.texts['timeline'])
        self.assertIn('timeline-rank-3', page.pictures)
        self.assertNotIn('timeline-rank-4', page.pictures)

        # Damaged: a warning, with the rest of the page.
        with open(run.file('timeline.json')) as f:
            whole = f.read()
        for damaged in ('', whole[:len(whole) // 2], whole.replace('"pid": 5', '"pid": 6'), whole.replace('"ts": 0', '"ts": -1'),
                        whole.replace('"ts": 0', '"ts": 1e999')):
            self.assertNotEqual(damaged, whole)
            with open(run.file('timeline.json'), 'w') as f:
                f.write(damaged)
            page, _ = self.page(run)
            self.assertRegex(page.texts['timeline'], r'Measured: damaged: .*timeline\.json')
            self.assertIn('timeline-planned', page.pictures)
            self.assertNotIn('timeline-rank-0', page.pictures)
        os.remove(run.file('timeline.json'))
        os.mkdir(run.file('timeline.json'))
        self.assertIn('Measured: damaged: ', self.page(run)[0].texts['timeline'])

        # What plans otherwise is not drawn.
        with open(run.file('config.json')) as f:
            text = f.read()
        with open(run.file('config.json'), 'w') as f:
            f.write(re.sub(r'("memory_plan": ")[^"]*', r'\g<1>0', text))
        page, _ = self.page(run)
        self.assertNotIn('timeline-planned', page.pictures)
        self.assertNotIn('arena', page.pictures)

    def test_environment_of_the_calls(self):
        run = self.train(ranks=1, sets=['train.steps=2'])
        run = self.train(ranks=1, sets=['train.steps=4', 'optimizer.lr=0.02'])
        with open(run.file('config.json')) as f:
            recorded = json.load(f)
        self.assertEqual(len(recorded['resumed']), 1)
        recorded.pop('environment', None)
        recorded['resumed'][0].pop('environment', None)

        def shown():
            with open(run.file('config.json'), 'w') as f:
                json.dump(recorded, f)
            page, _ = self.page(run)
            return page.tables['environment'], page.texts['environment']

        self.assertIn('recorded no host names', shown()[1])
        recorded['environment'] = [{'name': 'host', 'value': 'one'}, {'name': 'kernel', 'value': '6.1'}]
        table, text = shown()
        self.assertNotIn('recorded no host names', text)
        self.assertIn(['host and libraries', 'not recorded'], table)
        self.assertIn(['0', 'host', 'one'], table)
        recorded['resumed'][0]['environment'] = [{'name': 'host', 'value': '<b>two'}, {'name': 'kernel', 'value': '6.1'}]
        table, _ = shown()
        self.assertIn(['host', '<b>two'], table)
        self.assertIn(['kernel', '6.1'], table)
        self.assertIn(['0', 'host', 'one'], table)
        self.assertNotIn(['0', 'kernel', '6.1'], table)

    def test_restarts_saves_that_failed_and_checkpoints_that_are_damaged(self):
        run = self.train()
        with open(run.file('restarts.jsonl'), 'w') as f:
            for step, reason, restarts in ((3, 'a rank was killed by SIGKILL', True), (4, 'mpirun ended with <71>', False)):
                f.write(json.dumps({'event': 'failed', 'time': '2026-01-01T00:00:0%dZ' % step, 'reason': reason, 'exit_code': 137, 'step': step,
                                    'checkpoint': 2, 'restarts': restarts}) + '\n')
                if restarts:
                    f.write(json.dumps({'event': 'resumed', 'time': '2026-01-01T00:00:03Z', 'step': 3, 'seconds': 1.254}) + '\n')
        lines = run.metrics()
        lines[4]['save_error'] = 'cannot write to x: No space left on device'
        with open(run.file('metrics.jsonl'), 'w') as f:
            f.writelines(json.dumps(line) + '\n' for line in lines)
        path = run.checkpoint(int(run.checkpoints()[-1][len('step_'):]), 'rank_00001.safetensors')
        truncate(path, os.path.getsize(path) - 5)
        page, _ = self.page(run)
        calls = page.tables['calls']
        self.assertIn(['2026-01-01T00:00:03Z', 'a rank was killed by SIGKILL', '3', '137', '1.25 s'], calls)
        self.assertIn(['2026-01-01T00:00:04Z', 'mpirun ended with <71>', '4', '137', 'given up'], calls)
        self.assertIn('One could not be written.', page.texts['calls'])
        self.assertEqual(len([row for row in calls if path in row[-1]]), 1)
        self.assertEqual(len([row for row in calls if row[-1] == 'usable']), len(run.checkpoints()) - 1)

        shutil.rmtree(run.file('checkpoints'))
        with open(run.file('checkpoints'), 'w') as f:
            f.write('no folder\n')
        page, _ = self.page(run)
        self.assertIn('cannot list the folder %s' % run.file('checkpoints'), page.texts['calls'])

    def test_experts_without_room_have_a_curve_where_there_were_any(self):
        run = self.train(ranks=1)
        lines = run.metrics()
        dropped = [0, 37, 0, 5, 0, 0]
        for counts in ([0] * len(lines), dropped):
            for line, pairs in zip(lines, counts):
                line.update(max_load={'h.0': 1.5, 'h.1': 1 + pairs}, router_entropy={'h.0': 0.5, 'h.1': 0.75}, dropped_pairs=pairs)
            with open(run.file('metrics.jsonl'), 'w') as f:
                f.writelines(json.dumps(line) + '\n' for line in lines)
            page, _ = self.page(run)
            self.assertIn('max_load', page.ids)
            self.assertEqual('dropped_pairs' in page.ids, counts is dropped)
        self.check_curve(page, 'dropped_pairs', dropped)
        self.assertIn('most 37 (step 2)', page.texts['dropped_pairs'])
        self.assertEqual(len(page.titles['dropped_pairs']), STEPS)
        self.assertTrue(page.titles['dropped_pairs'][3].startswith('step 4\npairs 5'), page.titles['dropped_pairs'][3])

    def test_experts_have_a_map_of_their_loads(self):
        experts = {'experts': 4, 'top_k': 2, 'ffn': 16}
        config, run = self.config(run='experts', model={'family': 'qwen3_moe', 'moe': experts},
                                  train={'steps': STEPS, 'micro_batch': 2, 'accumulate': 2}, optimizer=CONSTANT)
        with open(config) as f:
            content = json.load(f)
        del content['model']['ffn']
        blocks = ['h.%d' % i for i in range(content['model']['layers'])]
        with open(config, 'w') as f:
            json.dump(content, f)
        self.expect(millrace('train', config, '--set', 'run.loads_every=4', ranks=2), OK)
        lines = run.metrics()
        self.assertEqual([line['step'] for line in lines if 'loads' in line], [4, STEPS])
        pairs = 2 * 2 * 2 * content['model']['seq_len'] * experts['top_k']  # of two ranks
        sums = {block: [0] * 4 for block in blocks}
        for line in lines:
            for block, loads in line.get('loads', {}).items():
                self.assertEqual(sum(loads), pairs)
                self.assertAlmostEqual(max(loads) / (pairs / 4), line['max_load'][block])
                sums[block] = [a + b for a, b in zip(sums[block], loads)]
        page, _ = self.page(run)
        rows = page.tables['experts'][1:]
        self.assertEqual([row[0] for row in rows], blocks)
        for row in rows:
            mean = 2 * pairs / 4
            self.assertEqual(row[2:4], ['%.3g' % (f(sums[row[0]]) / mean) for f in (min, max)])
            self.assertEqual(row[4], str(sums[row[0]].count(0)))
        self.assertEqual([title.split(':')[0] for title in page.titles['experts']], ['expert %d' % e for _ in blocks for e in range(4)])
        self.assertIn('over the 2 recorded steps', page.texts['experts'])

        # A line that is no count is left out; without one there is no map.
        for spoilt in ([1, -1, 0, 0], 'many', [0.5]):
            for line in lines:
                if 'loads' in line:
                    line['loads'] = {'h.0': spoilt}
            with open(run.file('metrics.jsonl'), 'w') as f:
                f.writelines(json.dumps(line) + '\n' for line in lines)
            page, _ = self.page(run)
            self.assertNotIn('experts', page.ids)

    def test_runs_that_did_not_end(self):
        run = RunDir(self.path('cut'))
        shutil.copytree(self.trained('evaluated', train={'steps': STEPS, 'micro_batch': 2, 'accumulate': 2, 'eval_every': 2}).path, run.path)
        os.remove(run.file('summary.json'))
        truncate(run.file('metrics.jsonl'), os.path.getsize(run.file('metrics.jsonl')) - 20)
        page, _ = self.page(run)
        self.assertEqual([len(points) for points in page.polylines[('loss', 'main')]], [5])
        self.assertIn('the run goes on, or did not end', page.texts['state'])
        self.assertIn('The last line of metrics.jsonl is cut off', page.texts[None])
        self.assertIn('Not known before the run has ended', page.texts['predicted'])
        self.assertIn('parameters', {row[0] for row in page.tables['memory']})

        lines = run.metrics()
        for line in lines:  # never finite
            line.update(loss=None, loss_bits='0x7fc00000', grad_norm=None, offender='loss on rank 0')
        with open(run.file('metrics.jsonl'), 'w') as f:
            f.writelines(json.dumps(line) + '\n' for line in lines)
        page, _ = self.page(run)
        self.assertNotIn(('loss', 'main'), page.polylines)
        self.assertIn('loss: no finite value', page.texts['loss'])
        self.assertEqual(len(page.tables['skipped']), 1 + len(lines))

        os.remove(run.file('metrics.jsonl'))
        page, _ = self.page(run)
        self.assertIn('No step is recorded yet.', page.texts[None])
        self.assertEqual(page.polylines, {})

    def test_a_long_run_keeps_its_extremes(self):
        run = self.train(ranks=1, sets=['train.steps=1'])
        (line,) = run.metrics()
        losses = [5 + (step % 7) / 10 for step in range(1, 20001)]
        losses[12344], losses[15431] = 99.5, 0.25
        with open(run.file('metrics.jsonl'), 'w') as f:
            for step, loss in enumerate(losses, 1):
                f.write(json.dumps(dict(line, step=step, loss=loss)) + '\n')
        page, text = self.page(run)
        (points,) = page.polylines[('loss', 'main')]
        self.assertLessEqual(len(points), 2000)
        self.assertIn(0, [y for _, y in points])
        self.assertIn(200, [y for _, y in points])
        self.assertIn('least 0.25 (step 15432), most 99.5 (step 12345); 20000 steps', page.texts['loss'])
        self.assertLess(len(text), 1 << 20)

    def test_what_is_no_run(self):
        run = self.train(ranks=1, sets=['train.steps=1'])
        os.makedirs(self.path('empty'))
        self.expect_line(self.expect(program('report', self.path('empty')), BAD_DATA).err, "empty is not a run's folder")
        self.expect_line(self.expect(program('report', self.path('none')), BAD_DATA).err, 'none does not exist$')
        self.expect(program('report'), BAD_CONFIG)
        with open(run.file('summary.json'), 'r+') as f:
            f.write('x')
        self.expect_line(self.expect(program('report', run.path), BAD_DATA).err, r'summary\.json')
        os.remove(run.file('summary.json'))
        with open(run.file('metrics.jsonl'), 'r+') as f:
            f.write('x')
        self.expect_line(self.expect(program('report', run.path), BAD_DATA).err, r'metrics\.jsonl:1: not valid JSON')
        self.assertFalse(os.path.exists(run.file('report.html')))
        self.assertEqual(os.listdir(self.path('empty')), [])


if __name__ == '__main__':
    unittest.main(verbosity=2)
