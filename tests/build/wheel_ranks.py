"""Ranks as threads and as processes, and what they tell each other."""
import multiprocessing
import threading

import millrace
from wheel_case import CONFIG, WheelCase, rows


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


class Ranks(WheelCase):

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
