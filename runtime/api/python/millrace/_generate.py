"""Requests, and the answers to them."""
import ctypes
from typing import Any, List, NamedTuple, Optional, Sequence

from . import _native as native
from ._errors import InvalidArgument
from ._native import LIBRARY, check


class Answer(NamedTuple):
    request: int  # its index
    sample: int
    tokens: List[int]  # with what ended it
    logprobs: List[float]  # of each, by the model before temperature and cuts
    stopped: bool  # by a stop token; else by max_tokens
    weight_version: int
    # With Request.top_logprobs, in the place of each token the likeliest ones, likeliest first, and their log-probabilities: 2-D memoryviews,
    # [len(tokens), top_logprobs] of int32 and float32, which numpy.asarray takes without a copy. Else None.
    top_tokens: Optional[memoryview] = None
    top_logprobs: Optional[memoryview] = None


class Request(NamedTuple):
    """What Run.generate and Run.stream are asked for."""
    prompt: Sequence[int]
    max_tokens: int
    samples: int = 1
    temperature: float = 1.0  # 0: the likeliest token
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_tokens: Sequence[int] = ()
    top_logprobs: int = 0  # of so many likeliest tokens in each token's place: at most 64, and at most the vocabulary


class Requests:
    """As C has them, for as long as it lives."""

    def __init__(self, requests: Sequence[Request]) -> None:
        given = []
        for number, request in enumerate(requests):
            prompt = native.integers(request.prompt, 'the prompt of request %d' % number)
            stops = native.integers(request.stop_tokens, 'stop_tokens of request %d' % number)
            if request.top_p == 0:
                raise InvalidArgument('top_p of request %d is 0; it must be above' % number, 64)
            given.append(
                native.Request(prompt=prompt, prompt_tokens=len(prompt), max_tokens=request.max_tokens, samples=request.samples,
                               temperature=request.temperature, top_k=request.top_k, top_p=request.top_p, min_p=request.min_p,
                               seed=request.seed, stop_tokens=stops, stop_count=len(stops), top_logprobs=request.top_logprobs))
        self.count = len(given)
        self.pointers = (ctypes.POINTER(native.Request) * len(given))(*(ctypes.pointer(one) for one in given))


def answers_of(handle: Any) -> List[Answer]:
    """What a mr_answers holds."""
    answers, one = [], native.AnswerStruct()
    for index in range(LIBRARY.mr_answers_count(handle)):
        check(LIBRARY.mr_answers_get(handle, index, ctypes.byref(one)))
        shape = [one.count, one.top]
        tops = (native.copied(one.top_tokens, 'i', shape), native.copied(one.top_logprobs, 'f', shape)) if one.top else (None, None)
        answers.append(
            Answer(one.request, one.sample, one.tokens[:one.count], one.logprobs[:one.count], one.finish == 0, one.weight_version, *tops))
    return answers
