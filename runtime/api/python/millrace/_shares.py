"""Scores and texts of many requests, shared out among the ranks of a run. Every rank makes the same calls with the same requests, and has all
results: those of one rank, bit for bit."""
import hashlib
import json
import struct
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ._errors import InvalidArgument
from ._run import Run

# The ids of a text, and how many of the last are scored.
Cut = Tuple[Tuple[int, ...], int]


class Shares:

    def __init__(self, run: Run) -> None:
        info, parallel = run.info, run.config['parallel']
        self._run, self._rows, self._width = run, info.eval_sequences, info.seq_len + 1
        # Ranks along these axes have the same rows: then all ranks do.
        together = parallel['tensor'] > 1 or parallel['context'] > 1
        self._count, self._own = (1, 0) if together else (info.world, info.rank)

    def scores(self, cuts: Sequence[Cut]) -> List[Tuple[float, bool]]:
        """Of each the log-probability of its last ids, and whether each of them is the likeliest."""
        self._agree(cuts)
        places: Dict[Tuple[int, ...], int] = {}
        for ids, _ in cuts:
            places.setdefault(ids, len(places))
        scored = self._scored(list(places))
        owners = [places[ids] // self._rows % self._count for ids, _ in cuts]
        own = [self._result(cut, scored[places[cut[0]]]) for cut, owner in zip(cuts, owners) if owner == self._own]
        shares = [iter(struct.iter_unpack('<d?', part)) for part in self._gather(b''.join(struct.pack('<d?', *one) for one in own))]
        return [next(shares[owner]) for owner in owners]

    def texts(self, requests: Sequence[Any], make: Callable[[Sequence[int]], List[str]]) -> List[str]:
        """make(numbers): the texts of these requests, on this rank."""
        self._agree(requests)
        numbers = range(len(requests))
        parts = [json.loads(part) for part in self._gather(json.dumps(make(numbers[self._own::self._count])).encode())]
        return [parts[number % self._count][number // self._count] for number in numbers]

    def _gather(self, own: bytes) -> List[bytes]:
        return self._run.gather(own) if self._count > 1 else [own]

    def _agree(self, requests: Sequence[Any]) -> None:
        """Ranks that were asked for different things would wait for each other, or mix answers up."""
        if len(set(self._run.gather(hashlib.sha256(repr(list(requests)).encode()).digest()))) > 1:
            raise InvalidArgument('the ranks were given different requests; each has to make the same calls', 64)

    def _scored(self, texts: Sequence[Tuple[int, ...]]) -> Dict[int, Tuple[List[float], List[int]]]:
        """Rows of this rank's share, by place. The ranks go through as many batches: one that has none left scores another's."""
        scored = {}
        batches = [range(first, min(first + self._rows, len(texts))) for first in range(0, len(texts), self._rows)]
        for first in range(0, len(batches), self._count):
            at = first + self._own
            batch = batches[at if at < len(batches) else first]
            rows = self._score([texts[place] for place in batch])
            if at < len(batches):
                scored.update(zip(batch, rows))
        return scored

    def _score(self, texts: Sequence[Tuple[int, ...]]) -> List[Tuple[List[float], List[int]]]:
        """One batch. Rows are padded behind their end, where no token before looks."""
        rows = [list(text) + [0] * (self._width - len(text)) for text in texts]
        rows += [rows[0]] * (self._rows - len(rows))
        scores = self._run.score(rows)
        return list(zip(scores.logprobs.tolist(), scores.likeliest.tolist()))[:len(texts)]

    @staticmethod
    def _result(cut: Cut, scored: Tuple[List[float], List[int]]) -> Tuple[float, bool]:
        (ids, length), (logprobs, likeliest) = cut, scored
        places = range(len(ids) - 1 - length, len(ids) - 1)
        return sum(logprobs[t] for t in places), all(likeliest[t] == ids[t + 1] for t in places)
