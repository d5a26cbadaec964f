"""What the package takes for tokens and other arguments, what its exceptions are, and when a run ends."""
import array
import copy
import gc
import os
import pickle
import signal
import sys
import tempfile
import threading

import millrace
from wheel_case import CONFIG, WheelCase, flat, rows


class Calls(WheelCase):

    def test_tokens_of_every_kind_are_the_same(self):
        losses = {self.loss(rows()), self.loss([tuple(row) for row in rows()])}
        for dtype in 'bhilqBHILQ':
            losses.add(self.loss(flat(dtype)))
        losses.add(self.loss(flat('i').toreadonly()))
        self.assertEqual(len(losses), 1)

    def loss(self, tokens):
        return self.run_.evaluate(tokens).loss

    def test_what_is_no_batch_is_refused(self):
        for wrong, words in (([[1, 2]], 'shape'), (flat('f'), 'format'), ([[0, 0, 0, 0, 2**31]], '32-bit'), ([[0, 0, 0, 0, 0.5]], '32-bit'),
                             ([[0, 0, 0, 0, 11]] * 3, r'batch.tokens\[0\]\[4\] is 11'), ([], 'sequences is 0')):
            with self.assertRaisesRegex(millrace.InvalidArgument, words):
                self.run_.step(wrong)
            with self.assertRaises(ValueError):
                self.run_.step(wrong)
        with self.assertRaisesRegex(millrace.InvalidArgument, 'use_data'):
            self.run_.step()
        self.assertEqual(self.run_.info.step, 0)

    def test_values_of_targets_are_lists_or_buffers(self):
        told = [[0.25 * row + 0.125 * column for column in range(4)] for row in range(3)]

        def buffer(dtype, shape=(3, 4)):
            return memoryview(array.array(dtype, sum(told, []))).cast('B').cast(dtype, shape)

        losses = set()
        for weights in told, [tuple(row) for row in told], buffer('f'), buffer('d'), buffer('f').toreadonly():
            with millrace.Run(dict(CONFIG, train=dict(CONFIG['train'], loss_weights=True))) as run:
                run.init()
                losses.add(run.step(rows(), weights=weights).loss)
                for wrong in told[:2], buffer('f', (4, 3)), buffer('f', (2, 6)):
                    with self.assertRaisesRegex(millrace.InvalidArgument, r'weights need the shape \[3, 4\]'):
                        run.step(rows(), weights=wrong)
        self.assertEqual(len(losses), 1)
        self.assertNotEqual(losses, {self.run_.step(rows()).loss})

    def test_errors_have_code_and_pointer(self):
        with self.assertRaises(millrace.ConfigError) as raised:
            millrace.Run(dict(CONFIG, optimizer={'lr': -1}))
        self.assertEqual((raised.exception.code, raised.exception.pointer), (2, '/optimizer/lr'))
        with self.assertRaises(millrace.CheckpointError):
            self.run_.load('/nonexistent')
        self.assertEqual(self.run_.step(rows()).step, 1)  # it is as it was
        with self.assertRaises(millrace.Error):
            self.run_.import_weights('/nonexistent')
        with self.assertRaises(millrace.InvalidArgument):
            self.run_.step(rows())  # it has no weights now
        self.run_.close()
        with self.assertRaises(millrace.InvalidArgument):
            self.run_.init()
        self.run_.close()

    def test_memory_goes_and_comes_and_numbers_stay(self):
        with millrace.Run(CONFIG, use_inference=True) as run:
            run.init()
            for step, part in enumerate(('era', 'copies', 'all')):
                self.assertEqual(run.step(rows(step)), self.run_.step(rows(step)))
                with run.released(part) as memory:
                    self.assertEqual(run.info.released_bytes, memory.bytes)
                    with self.assertRaisesRegex(millrace.ReleasedError, r'released \(%s\): mr_acquire' % part):
                        run.step(rows())
                    with self.assertRaisesRegex(millrace.ReleasedError, 'already'):
                        run.release()
                self.assertEqual(run.info.released_bytes, 0)
            gone = run.release('all')
            back = run.acquire()
            self.assertGreater(gone.bytes, 0)
            self.assertGreater(gone.host_bytes, 0)
            self.assertEqual(back[:2], gone[:2])
            with self.assertRaisesRegex(KeyError, 'mine'), run.released('all'):
                raise KeyError('mine')
            self.assertEqual(run.step(rows(3)), self.run_.step(rows(3)))
            with self.assertRaisesRegex(millrace.InvalidArgument, "'era', 'copies', 'all'"):
                run.release('some')
            with self.assertRaisesRegex(millrace.InvalidArgument, 'no memory of the run is released'):
                run.acquire()
            with run.borrow('transformer.wte.weight'), self.assertRaises(millrace.BorrowedError):
                run.release('all')

    def test_integers_of_any_library_are_tokens_and_nothing_else_is(self):

        class Integer:  # as numpy's and torch's scalars are

            def __init__(self, value):
                self.value = value

            def __index__(self):
                return self.value

        self.assertEqual(self.loss([[Integer(value) for value in row] for row in rows()]), self.loss(rows()))
        with millrace.Run(CONFIG, use_inference=True) as run:
            run.init()
            one = run.generate([millrace.Request(prompt=[1, 2], max_tokens=2)])
            self.assertEqual(run.generate([millrace.Request(prompt=b'\1\2', max_tokens=2)]), one)
            self.assertEqual(run.generate([millrace.Request(prompt=[Integer(1), Integer(2)], max_tokens=2)]), one)
            for wrong in ([1.7], '12', [2**31]):
                with self.assertRaisesRegex(millrace.InvalidArgument, 'the prompt of request 0 holds .*32-bit'):
                    run.generate([millrace.Request(prompt=wrong, max_tokens=1)])

    def test_integers_are_not_cut_to_what_c_has_room_for(self):
        with self.assertRaisesRegex(millrace.InvalidArgument, 'rank is 4294967296'):
            millrace.Run(CONFIG, rank=2**32)
        with self.assertRaisesRegex(millrace.InvalidArgument, 'device is 4294967296'):
            millrace.Run(CONFIG, device=2**32)
        with self.assertRaisesRegex(millrace.InvalidArgument, 'options.device is 1; the backend is the CPU'):
            millrace.Run(CONFIG, device=1)
        with millrace.Run(CONFIG, use_inference=True) as run:
            run.init()
            for wrong in ({'seed': -1}, {'seed': 2**64}, {'top_k': 2**32}, {'samples': 2**64 + 1}):
                with self.assertRaisesRegex(millrace.InvalidArgument, '%s is %d' % next(iter(wrong.items()))):
                    run.generate([millrace.Request(prompt=[1], max_tokens=1, **wrong)])

    def test_texts_do_not_end_at_a_zero_byte(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(millrace.InvalidArgument, 'zero byte'):
                self.run_.save(folder + '/run\0of another name')
            self.assertEqual(os.listdir(folder), [])
        with self.assertRaisesRegex(millrace.InvalidArgument, 'zero byte'):
            millrace.Run('{}\0')
        with self.assertRaisesRegex(millrace.InvalidArgument, 'zero byte'):
            self.run_.borrow('transformer.wte.weight\0')

    def test_what_one_object_has_is_neither_copied_nor_there_when_it_was_closed(self):
        with self.run_.borrow('transformer.ln_f.weight') as tensor:
            for own in (self.run_, tensor):
                for copied in (copy.copy, copy.deepcopy, pickle.dumps):
                    with self.assertRaisesRegex(TypeError, 'cannot be copied'):
                        copied(own)
        self.run_.close()
        for call in (self.run_.init, lambda: self.run_.info, lambda: self.run_.step(rows())):
            with self.assertRaisesRegex(millrace.InvalidArgument, '^the Run was closed'):
                call()
        self.run_.close()  # again is nothing

    def test_a_run_that_was_never_made_is_deleted_in_silence(self):
        heard, hook = [], sys.unraisablehook
        sys.unraisablehook = heard.append
        try:
            with self.assertRaises(TypeError):
                millrace.Run()
            gc.collect()
        finally:
            sys.unraisablehook = hook
        self.assertEqual(heard, [])

    def test_a_run_in_a_call_cannot_be_closed_and_is_not_lost(self):
        inside, leave = threading.Event(), threading.Event()

        def log(level, text):
            inside.set()
            leave.wait(60)

        with tempfile.TemporaryDirectory() as folder:
            run = millrace.Run(CONFIG, log=log)
            run.init()
            saving = threading.Thread(target=run.save, args=(folder,))
            saving.start()
            try:
                self.assertTrue(inside.wait(60))
                with self.assertRaises(millrace.BusyError):
                    run.close()
            finally:
                leave.set()
                saving.join()
            self.assertEqual(run.info.step, 0)  # still there
            run.close()
            with self.assertRaises(millrace.InvalidArgument):
                run.info

    def test_an_interrupt_leaves_the_run_usable(self):

        def interrupt(*_):
            raise KeyboardInterrupt

        config = dict(CONFIG, train=dict(CONFIG['train'], steps=10**6))
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with millrace.Run(config, use_inference=True) as run:
                run.init()
                for number in range(20):
                    with self.assertRaises(KeyboardInterrupt):
                        signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0001 * number)
                        while True:
                            run.step(rows())
                            run.generate([millrace.Request(prompt=[1], max_tokens=3, samples=2)])
                done = run.info.step
                self.assertEqual(run.step(rows()).step, done + 1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_the_log_is_called_with_words(self):
        heard = []
        with tempfile.TemporaryDirectory() as folder:
            with millrace.Run(dict(CONFIG, checkpoint={'every': 5}), log=lambda level, text: heard.append((level, text))) as run:
                run.init()
                run.save(folder)
                run.load(folder)
        self.assertEqual([level for level, _ in heard], ['info', 'info'])
        self.assertIn('checkpoint.every', heard[0][1])

    def test_the_configuration_is_whole(self):
        self.assertEqual(self.run_.config['optimizer']['betas'], [0.9, 0.95])
        self.assertIn('"seq_len"', millrace.config_schema())
