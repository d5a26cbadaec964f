"""The Python package by itself, in an environment with nothing else in it: what it takes for tokens, what its exceptions are, ranks as
threads, callbacks that fail, tensors and who holds them."""
import array
import ast
import ctypes
import gc
import hashlib
import importlib
import json
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import millrace

CONFIG = {
    'model': {'family': 'gpt2', 'layers': 1, 'd_model': 12, 'heads': 2, 'seq_len': 4, 'vocab': 11},
    'train': {'steps': 9, 'micro_batch': 3, 'accumulate': 1},
}


def rows(step=0, rank=0):
    return [[(2 * step + 5 * rank + 3 * row + i * (row + 1)) % 11 for i in range(5)] for row in range(3)]


def flat(dtype):
    """The same as a 2-D buffer of another element type."""
    return memoryview(array.array(dtype, sum(rows(), []))).cast('B').cast(dtype, [3, 5])


def rank_as_process(rank, other, results, gone):

    def exchange(own):
        other.send_bytes(own)
        theirs = other.recv_bytes()
        return [own, theirs] if rank == 0 else [theirs, own]

    losses = []
    with millrace.Run(CONFIG, rank=rank, world=2, exchange=exchange) as run:
        run.init()
        if gone and rank == 1:
            results.put((rank, 'gone'))
            return
        try:
            for step in range(3):
                losses.append(run.step(rows(step, rank)).loss)
        except millrace.Error as error:
            losses = type(error).__name__
    results.put((rank, losses))


class Wheel(unittest.TestCase):

    def setUp(self):
        self.run_ = millrace.Run(CONFIG)
        self.addCleanup(self.run_.close)
        self.run_.init()

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

    def test_errors_have_code_and_pointer(self):
        with self.assertRaises(millrace.ConfigError) as raised:
            millrace.Run(dict(CONFIG, optimizer={'lr': -1}))
        self.assertEqual((raised.exception.code, raised.exception.pointer), (2, '/optimizer/lr'))
        with self.assertRaises(millrace.CheckpointError):
            self.run_.load('/nonexistent')
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

    def test_a_tensor_holds_steps_up_until_it_is_given_back(self):
        name = 'transformer.h.0.mlp.c_fc.weight'  # stored transposed
        self.assertIn(name, self.run_.weight_names)
        tensor = self.run_.borrow(name)
        self.assertEqual((tensor.shape, tensor.strides), ((12, 48), (1, 12)))
        before = tensor.tolist()
        self.assertEqual((len(before), len(before[0])), tensor.shape)
        with self.assertRaises(millrace.BorrowedError):
            self.run_.step(rows())
        capsule = tensor.__dlpack__(max_version=(1, 1))
        self.assertEqual(self.run_.info.lent, 2)
        tensor.release()
        with self.assertRaises(ValueError):
            tensor.tolist()
        self.assertEqual(self.run_.info.lent, 1)
        del capsule  # nobody has taken it
        self.assertEqual(self.run_.info.lent, 0)

        def refuses(_):
            raise RuntimeError('a consumer refuses what it was given, and drops it while it raises')
        with self.assertRaisesRegex(RuntimeError, 'a consumer refuses'):
            with self.run_.borrow(name) as other:
                refuses(other.__dlpack__(max_version=(1, 0)))
        version = self.run_.step(rows()).weight_version
        with self.run_.borrow(name) as after:
            self.assertEqual(after.version, version)
            self.assertNotEqual(after.tolist(), before)
            with self.assertRaisesRegex(BufferError, '1.0'):
                after.__dlpack__()
            with self.assertRaises(BufferError):
                after.__dlpack__(max_version=(1, 0), copy=True)
            self.assertEqual(after.__dlpack_device__(), (1, 0))
        self.assertEqual(self.run_.info.lent, 0)

    def test_a_consumer_of_dlpack_sees_the_bytes(self):
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        tensor = self.run_.borrow('transformer.wte.weight')
        capsule = tensor.__dlpack__(max_version=(1, 0))
        words = ctypes.cast(api.PyCapsule_GetPointer(capsule, b'dltensor_versioned'), ctypes.POINTER(ctypes.c_uint64))
        self.assertEqual(words[0] & 0xffffffff, 1)  # major version
        self.assertEqual(words[3], 1)  # flags: read-only
        values = ctypes.cast(words[4], ctypes.POINTER(ctypes.c_float))
        self.assertEqual([values[i] for i in range(11 * 12)], sum(tensor.tolist(), []))

    def test_a_tensor_outlives_its_run(self):
        tensor = self.run_.borrow('transformer.ln_f.weight')
        self.run_.close()
        self.assertEqual(tensor.tolist(), [1.0] * 12)

    def test_another_process_has_the_weights_of_the_version_that_was_exported(self):
        """The other process reads them; what it says of their bytes is held beside the folder that export() writes."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        ours, theirs = socket.socketpair()
        program = ('import hashlib, socket, sys, millrace.weights\n'
                   'connection = socket.socket(fileno=int(sys.argv[1]))\n'
                   'held = []\n'
                   'for line in sys.stdin:\n'
                   '    if line == "receive\\n":\n'
                   '        held.append(millrace.weights.receive(connection))\n'
                   '    weights = held[int(line) if line.strip().isdigit() else -1]\n'
                   '    sums = {n: [list(weights[n].shape), hashlib.sha256(weights[n].tobytes()).hexdigest()] for n in weights}\n'
                   '    print(weights.version, sums, flush=True)\n')
        other = subprocess.Popen([sys.executable, '-B', '-c', program, str(theirs.fileno())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 pass_fds=[theirs.fileno()], universal_newlines=True)
        theirs.close()
        self.addCleanup(other.wait)
        self.addCleanup(other.stdout.close)
        self.addCleanup(other.stdin.close)

        def asked(word):
            other.stdin.write(word + '\n')
            other.stdin.flush()
            version, sums = other.stdout.readline().split(' ', 1)
            return int(version), ast.literal_eval(sums)

        def exported():
            with self.run_.export_weights() as weights:
                millrace.weights.send(ours, weights)
                return weights.version, json.loads(weights.manifest)

        def of_folder(name):
            self.run_.export(os.path.join(folder.name, name))
            with open(os.path.join(folder.name, name, 'model.safetensors'), 'rb') as f:
                data = f.read()
            length, = struct.unpack('<Q', data[:8])
            tensors = {}
            for name, told in json.loads(data[8:8 + length]).items():
                if name != '__metadata__':
                    begin, end = (8 + length + at for at in told['data_offsets'])
                    tensors[name] = [told['shape'], hashlib.sha256(data[begin:end]).hexdigest()]
            return tensors

        first, manifest = exported()
        self.assertEqual(set(manifest), {'millrace_weights', 'version', 'bytes', 'tensors'})
        before = of_folder('before')
        self.assertEqual(asked('receive'), (first, before))
        self.run_.step(rows())  # nothing is lent
        second, _ = exported()
        self.assertEqual(second, first + 1)
        after = of_folder('after')
        self.assertNotEqual(after, before)
        self.assertEqual(asked('receive'), (second, after))
        self.assertEqual(asked('0'), (first, before))  # what it had is what it was
        with self.run_.released('all'):
            with self.assertRaises(millrace.ReleasedError):
                self.run_.export_weights()
        self.run_.close()
        self.assertEqual(asked('1'), (second, after))  # and outlives the run
        ours.close()
        with self.assertRaises(millrace.InvalidArgument):
            self.run_.export_weights()

    def test_a_manifest_that_leads_outside_the_memory_is_refused(self):
        with self.run_.export_weights() as exported:
            for change in ({'offset': 1 << 40}, {'offset': -256}, {'shape': [1 << 40]}, {'shape': [-1]}):
                told = json.loads(exported.manifest)
                name = next(iter(told['tensors']))
                told['tensors'][name].update(change)
                with self.assertRaisesRegex(ValueError, 'lies outside'):
                    millrace.weights.SharedWeights(exported.fileno(), json.dumps(told))
            self.assertGreater(len(millrace.weights.SharedWeights(exported.fileno(), exported.manifest)), 0)

    def test_exported_weights_are_for_readers_of_dlpack(self):
        with self.run_.export_weights() as exported:
            weights = millrace.weights.SharedWeights(exported.fileno(), exported.manifest)
        with self.assertRaises(ValueError):
            exported.fileno()
        name = 'lm_head.weight' if 'lm_head.weight' in weights else next(iter(weights))
        tensor = weights[name]
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))
        with self.assertRaisesRegex(BufferError, 'DLPack'):
            tensor.__dlpack__()
        capsule = tensor.__dlpack__(max_version=(1, 0))
        self.assertEqual(len(millrace.weights._lent), 1)
        del capsule
        weights.close()
        self.assertEqual(len(millrace.weights._lent), 0)  # given back
        with self.assertRaises(ValueError):
            weights[name]
        self.assertEqual(len(tensor.tobytes()), tensor.nbytes)  # a tensor keeps the memory

    def test_a_program_learns_from_its_own_samples(self):
        config = dict(CONFIG, train=dict(CONFIG['train'], loss='policy_gradient', loss_weights=True))
        with millrace.Run(config, use_inference=True) as run:
            run.init()
            requests = [millrace.Request(prompt=[1], max_tokens=3, samples=2, seed=5), millrace.Request(prompt=[2, 3], max_tokens=2, stop_tokens=[7])]
            answers = run.generate(requests)
            self.assertEqual([(answer.request, answer.sample) for answer in answers], [(0, 0), (0, 1), (1, 0)])
            self.assertEqual(answers[0].weight_version, run.info.weight_version)
            tokens, old, weights = [], [], []
            for answer in answers:  # a prompt of n tokens: its answer's first target is the one at n - 1
                prompt = list(requests[answer.request].prompt)
                before, pad = len(prompt) - 1, 5 - len(prompt) - len(answer.tokens)
                tokens.append(prompt + answer.tokens + [0] * pad)
                old.append([-9.0] * before + answer.logprobs + [-9.0] * pad)
                weights.append([0.0] * before + [1.0] * len(answer.tokens) + [0.0] * pad)
            result = run.step(tokens, weights=weights, old_logprobs=old, advantages=[[0.5] * 4] * 3)
            self.assertAlmostEqual(result.loss, -0.5, places=6)  # every ratio is 1
            self.assertNotEqual(run.generate(requests)[0].logprobs, answers[0].logprobs)
            with self.assertRaisesRegex(millrace.InvalidArgument, 'old_logprobs'):
                run.step(tokens, weights=weights, advantages=[[0.5] * 4] * 3)
            with self.assertRaisesRegex(millrace.InvalidArgument, 'shape'):
                run.step(tokens, weights=[[1.0]])
            with self.assertRaisesRegex(millrace.InvalidArgument, r'requests\[0\]'):
                run.generate([millrace.Request(prompt=[11], max_tokens=1)])
        with self.assertRaisesRegex(millrace.InvalidArgument, 'use_inference'):
            self.run_.generate([])

    def inference_run(self, **more):
        run = millrace.Run(dict(CONFIG, **more), use_inference=True)
        self.addCleanup(run.close)
        run.init()
        return run

    def test_scores_are_of_each_target(self):
        run = self.inference_run()
        scores = run.score(rows())
        self.assertEqual((scores.logprobs.shape, scores.likeliest.shape), ((3, 4), (3, 4)))
        mean = -sum(map(sum, scores.logprobs.tolist())) / 12
        self.assertAlmostEqual(mean, run.evaluate(rows()).loss, places=12)
        greedy = run.generate([millrace.Request(prompt=[row[0]], max_tokens=3, temperature=0) for row in rows()])
        told = [[row[0]] + answer.tokens + [0] for row, answer in zip(rows(), greedy)]
        scores = run.score(told)
        for row, answer in enumerate(greedy):
            self.assertEqual(scores.likeliest.tolist()[row][:3], answer.tokens)
            for t in range(3):
                self.assertAlmostEqual(scores.logprobs[row, t], answer.logprobs[t], places=6)
        for wrong in (rows()[:2], [[0, 0, 0, 0, 11]] * 3, [[1]]):
            with self.assertRaises(millrace.InvalidArgument):
                run.score(wrong)
        with self.assertRaisesRegex(millrace.InvalidArgument, 'use_inference'):
            self.run_.score(rows())

    REQUESTS = [millrace.Request(prompt=[1], max_tokens=3, samples=2, seed=5), millrace.Request(prompt=[2, 3], max_tokens=2)]

    def test_a_stream_has_the_answers_tokens(self):
        run = self.inference_run()
        answers, events = run.generate(self.REQUESTS), list(run.stream(self.REQUESTS))
        for answer in answers:
            of = [event for event in events if (event.request, event.sample) == (answer.request, answer.sample)]
            self.assertEqual([event.token for event in of], answer.tokens)
            self.assertEqual([event.logprob for event in of], answer.logprobs)
            self.assertEqual([event.finish for event in of], [None] * (len(of) - 1) + ['length'])
            self.assertEqual({(event.weight_version, event.text) for event in of}, {(run.info.weight_version, None)})
        self.assertEqual(len(events), sum(len(answer.tokens) for answer in answers))
        self.assertEqual(list(run.stream([])), [])

    def test_a_stream_that_is_left_ends(self):
        run = self.inference_run()
        with run.stream(self.REQUESTS) as events:
            first = next(events)
            events.cancel(0)
        self.assertEqual(first.index, 0)
        self.assertEqual(list(events), [])
        self.assertEqual(run.step(rows()).step, 1)  # it serves other calls again
        events = run.stream(self.REQUESTS)
        next(events)
        del events
        self.assertEqual(run.step(rows()).step, 2)
        with self.assertRaisesRegex(millrace.InvalidArgument, r'requests\[0\]'):
            next(run.stream([millrace.Request(prompt=[11], max_tokens=1)]))
        run.close()
        with self.assertRaises(millrace.InvalidArgument):
            run.stream(self.REQUESTS)

    def test_a_tokenizer_gives_a_stream_its_text(self):
        path = os.path.join(os.environ['WHEEL_DATA'], 'tests/runtime/text/testdata')
        with millrace.Tokenizer(path) as tokenizer:
            text = 'the house caf\u00e9 \u4e2d <|end|>'
            ids = tokenizer.encode(text)
            self.assertEqual(tokenizer.decode(ids), text)
            self.assertEqual(tokenizer.decode(ids, skip_special=True), text[:-7])
            self.assertEqual((ids[-1], tokenizer.token_id('<|none|>')), (tokenizer.token_id('<|end|>'), None))
            self.assertGreater(len(tokenizer.encode(text, plain=True)), len(ids))
            run = self.inference_run(model=dict(CONFIG['model'], seq_len=40, vocab=697))
            request = millrace.Request(prompt=[5], max_tokens=30)
            shown = ''.join(event.text for event in run.stream([request], tokenizer))
            self.assertEqual(shown, tokenizer.decode(run.generate([request])[0].tokens, skip_special=True))
        with self.assertRaises(millrace.InvalidArgument):
            tokenizer.encode('x')
        with self.assertRaises(millrace.DataError):
            millrace.Tokenizer('/nonexistent')

    def test_scores_are_those_of_lm_eval(self):
        """The rows that lm-eval asked transformers for, of the model of tests/golden/README.md."""
        config = {'model': {'family': 'llama', 'layers': 2, 'd_model': 48, 'heads': 4, 'kv_heads': 2, 'ffn': 96, 'vocab': 256, 'seq_len': 128,
                            'init_std': 0.3}, 'train': {'steps': 1, 'micro_batch': 8, 'accumulate': 1, 'seed': 7}}
        with open(os.path.join(os.environ['WHEEL_DATA'], 'tests/golden/lm_eval/golden.json'), encoding='utf-8') as golden:
            asked = json.load(golden)['hellaswag']['rows'][:32]
        with millrace.Run(config, use_inference=True) as run:
            run.init()
            for at in range(0, len(asked), 8):
                some = asked[at:at + 8]
                scores = run.score([row['ids'] + [0] * (129 - len(row['ids'])) for row in some])
                for row, logprobs in zip(some, scores.logprobs.tolist()):
                    scored = logprobs[row['first'] - 1:len(row['ids']) - 1]
                    self.assertLess(abs(sum(scored) - row['log_prob']), 1e-4 * len(scored))

    def test_lm_eval_is_asked_for_by_its_module_alone(self):
        self.assertNotIn('lm_eval', sys.modules)
        with self.assertRaisesRegex(ImportError, "No module named 'lm_eval'"):
            importlib.import_module('millrace.lm_eval')

    def test_what_is_no_mpi_is_refused(self):
        with self.assertRaisesRegex(millrace.InvalidArgument, 'mpi is 7'):
            millrace.Run(CONFIG, mpi=7)
        with self.assertRaisesRegex(millrace.InvalidArgument, 'world 2'):
            millrace.Run(CONFIG, mpi=True, world=2)

    def test_runs_on_threads_have_the_bits_that_each_has_alone(self):
        config = {
            'model': {'family': 'gpt2', 'layers': 2, 'd_model': 96, 'heads': 2, 'seq_len': 48, 'vocab': 64},
            'train': {'steps': 99, 'micro_batch': 4, 'accumulate': 1},
        }

        def train(losses):
            with millrace.Run(config) as run:
                run.init()
                for step in range(60):
                    tokens = [[(2 * step + 3 * row + i * (row + 1)) % 64 for i in range(49)] for row in range(4)]
                    losses.append(run.step(tokens).loss)

        alone, beside = [], [[], [], [], []]
        train(alone)
        threads = [threading.Thread(target=train, args=(losses,)) for losses in beside]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(alone), 60)
        self.assertEqual(beside, 4 * [alone])

    def test_ranks_are_threads(self):
        self.assertEqual(len(self.ranks_as_threads()), 3)

    def ranks_as_threads(self):
        meeting, board, losses = threading.Barrier(2), [b''] * 2, [[], []]

        def rank_main(rank):

            def exchange(own):
                board[rank] = own
                meeting.wait()
                parts = list(board)
                meeting.wait()
                return parts

            with millrace.Run(CONFIG, rank=rank, world=2, exchange=exchange) as run:
                run.init()
                for step in range(3):
                    losses[rank].append(run.step(rows(step, rank)).loss)

        ranks = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        self.assertEqual(losses[0], losses[1])
        return losses[0]

    def on_ranks(self, world, use):
        """What use(run, rank) returns, by rank: an exception where one left it. Ranks are threads."""
        meeting, board, results = threading.Barrier(world), [b''] * world, [None] * world

        def rank_main(rank):

            def exchange(own):
                board[rank] = own
                meeting.wait(60)
                parts = list(board)
                meeting.wait(60)
                return parts

            with millrace.Run(CONFIG, rank=rank, world=world, exchange=exchange, use_inference=True) as run:
                run.init()
                try:
                    results[rank] = use(run, rank)
                except millrace.Error as error:
                    results[rank] = error

        ranks = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(world)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        return results

    def test_ranks_gather_what_they_have_to_say(self):
        self.assertEqual(self.on_ranks(3, lambda run, rank: run.gather(bytes([rank]) * rank)), 3 * [[b'', b'\1', b'\2\2']])
        self.assertEqual(self.run_.gather(b'alone'), [b'alone'])

    def test_ranks_share_out_what_lm_eval_asks(self):
        from millrace._shares import Shares
        cuts = [(tuple((7 * n + i * i) % 11 for i in range(2 + n % 4)), 1 + n % 2) for n in range(31)]
        requests = [millrace.Request(prompt=[n % 11], max_tokens=3, temperature=1.0, seed=n) for n in range(5)]
        batches = []

        def use(run, _):
            shares, counted = Shares(run), []
            score = run.score
            run.score = lambda rows: counted.append(len(rows)) or score(rows)
            found = [shares.scores(cuts), shares.scores(cuts[:1]), shares.scores([])]
            batches.append(counted)
            for asked in requests, requests[:1], []:  # with less than a request for each rank, too
                found.append(shares.texts(asked, lambda share: [repr(answer.tokens) for answer in run.generate([asked[n] for n in share])]))
            return found

        alone, = self.on_ranks(1, use)
        self.assertEqual(len(set(alone[0])), len({ids + (length,) for ids, length in cuts}))  # results tell requests apart
        for world in 2, 3:
            self.assertEqual(self.on_ranks(world, use), world * [alone])
        distinct = -(-len({ids for ids, _ in cuts}) // 3)  # batches of three rows
        self.assertEqual([len(counted) for counted in batches], [distinct + 1] + 2 * [-(-distinct // 2) + 1] + 3 * [-(-distinct // 3) + 1])

    def test_ranks_that_are_asked_for_different_things_say_so(self):
        from millrace._shares import Shares
        for error in self.on_ranks(2, lambda run, rank: Shares(run).scores([((1, 2, 3 + rank), 1)])):
            self.assertIsInstance(error, millrace.InvalidArgument)
            self.assertIn('different requests', str(error))

    def test_ranks_are_processes_with_the_bits_of_threads(self):
        over_processes = self.ranks_as_processes(gone=False)
        self.assertEqual(over_processes[0], over_processes[1])
        self.assertEqual(over_processes[0], self.ranks_as_threads())
        self.assertEqual(self.ranks_as_processes(gone=True), ['PeerLostError', 'gone'])

    def ranks_as_processes(self, gone):
        """What two processes return; with `gone` the second one leaves before the first step."""
        context = multiprocessing.get_context('spawn')
        meeting, results = context.Pipe(), context.Queue()
        ranks = [context.Process(target=rank_as_process, args=(rank, meeting[rank], results, gone)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        said = dict(results.get(timeout=60) for _ in ranks)
        for rank in ranks:
            rank.join()
        return [said[0], said[1]]

    def test_an_exchange_that_raises_is_the_cause(self):

        def broken(own):
            raise OSError('no network')

        with self.assertRaisesRegex(millrace.CallbackError, 'OSError: no network') as raised:
            millrace.Run(CONFIG, rank=0, world=2, exchange=broken)
        self.assertIsInstance(raised.exception.__cause__, OSError)
        with self.assertRaisesRegex(millrace.CallbackError, 'an exchange gave'):
            millrace.Run(CONFIG, rank=0, world=2, exchange=lambda own: [own])

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


def main():
    if sys.argv[1:] != ['--mpi']:
        unittest.main()
    with millrace.Run(CONFIG, mpi=True) as run:  # under mpirun
        run.init()
        rank = run.info.rank
        if run.gather(bytes([rank]) * rank) != [bytes([other]) * other for other in range(run.info.world)]:
            sys.exit('ranks did not gather what they had to say')
        sys.stdout.write('%d %d %r\n' % (rank, run.info.world, [run.step(rows(step, rank)).loss for step in range(3)][2]))


if __name__ == '__main__':
    main()
