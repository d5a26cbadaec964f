"""lm-eval (EleutherAI's lm-evaluation-harness, 0.4) on a run of this process: no server, no export.

    import lm_eval
    from millrace.lm_eval import MillraceLM

    lm_eval.simple_evaluate(model=MillraceLM(run, 'tokenizer.json'), tasks=['hellaswag'])

The run has weights and use_inference. Of several ranks each makes the same call, and has the whole result: the requests are shared out among
them, and bits are those of one rank. Importing this module needs lm-eval; `import millrace` does not.
"""
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ._generate import Request
from ._run import Run
from ._shares import Shares
from ._tokenizer import Tokenizer

# What stands before a text, and what ends one, where nothing else is said: the first that there is.
_BEGINNINGS = ('<|begin_of_text|>', '<s>', '<|endoftext|>', '<|end_of_text|>', '</s>')
_ENDS = ('<|endoftext|>', '<|end_of_text|>', '</s>', '<|im_end|>')


@register_model('millrace')
class MillraceLM(TemplateLM):
    """A run as lm-eval's model.

    run            has weights and was made with use_inference
    tokenizer      a Tokenizer, the path of a tokenizer.json, or of a folder that has one
    prefix_token_id stands before a text that is scored without a context; None: the tokenizer's own beginning
    eot_token_id   ends a generated text; None: the tokenizer's own end, else the prefix
    max_gen_toks   of a generated text where the task does not say

    Scores are those of the training forward (Run.score), whatever the batch. Generation is greedy or sampled as the task asks; keys of
    its gen_kwargs beyond until, do_sample, temperature, top_k, top_p, min_p and the length are refused, not ignored.
    """

    def __init__(self,
                 run: Run,
                 tokenizer: Union[Tokenizer, str, 'os.PathLike[str]'],
                 *,
                 prefix_token_id: Optional[int] = None,
                 eot_token_id: Optional[int] = None,
                 max_gen_toks: int = 256,
                 seed: int = 0) -> None:
        super().__init__()
        self.run = run
        self._shares = Shares(run)
        self.tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer)
        self.max_length = run.info.seq_len
        self.max_gen_toks = max_gen_toks
        self._prefix = self._found(prefix_token_id, self.tokenizer.encode('')[:1] + self._ids(_BEGINNINGS), 'prefix_token_id')
        self._eot = self._found(eot_token_id, self._ids(_ENDS) + [self._prefix], 'eot_token_id')
        self._seed = seed

    def _ids(self, names: Sequence[str]) -> List[int]:
        return [found for found in map(self.tokenizer.token_id, names) if found is not None]

    @staticmethod
    def _found(given: Optional[int], known: List[int], name: str) -> int:
        if given is not None:
            return given
        if not known:
            raise ValueError('%s: the tokenizer has none of %s; give the id' % (name, ', '.join(_BEGINNINGS)))
        return known[0]

    @property
    def eot_token_id(self) -> int:
        return self._eot

    @property
    def prefix_token_id(self) -> int:
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        return 'millrace'

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None, **_: Any) -> List[int]:
        return self.tokenizer.encode(string, template=bool(add_special_tokens))

    def tok_decode(self, tokens: Union[int, Sequence[int]], skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode([tokens] if isinstance(tokens, int) else tokens, skip_special=skip_special_tokens)

    def _loglikelihood_tokens(self, requests: Sequence[Tuple[Any, List[int], List[int]]], **_: Any) -> List[Tuple[float, bool]]:
        """Of each request's continuation, behind its context; a context that is too long loses its front. Requests of equal ids are
        scored once; order and grouping change no bits."""
        cuts = [self._cut(context, continuation) for _, context, continuation in requests]
        results = self._shares.scores(cuts)
        for (key, _, _), result in zip(requests, results):
            if key is not None:
                self.cache_hook.add_partial('loglikelihood', key, result)
        return results

    def _cut(self, context: List[int], continuation: List[int]) -> Tuple[Tuple[int, ...], int]:
        if not continuation or len(continuation) > self.max_length:
            raise ValueError('a continuation of %d tokens; allowed are 1 to seq_len = %d' % (len(continuation), self.max_length))
        return tuple((list(context) + list(continuation))[-(self.max_length + 1):]), len(continuation)

    def loglikelihood_rolling(self, requests: List[Any], disable_tqdm: bool = False) -> List[float]:
        """Of whole texts, each token predicted once, as the harness cuts them."""
        windows, counts = [], []
        for text, in (request.args for request in requests):
            of_text = [(None, *make_disjoint_window(window))
                       for window in get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, 1)]
            windows += of_text
            counts.append(len(of_text))
        scores = iter(self._loglikelihood_tokens(windows))
        results = []
        for request, count in zip(requests, counts):
            results.append(sum(next(scores)[0] for _ in range(count)))
            self.cache_hook.add_partial('loglikelihood_rolling', request.args, results[-1])
        return results

    def generate_until(self, requests: List[Any], disable_tqdm: bool = False) -> List[str]:
        """Texts up to the first of the task's stop strings or the end token; all requests are batched, by the slots of the run."""
        end = self.tok_decode(self._eot, skip_special_tokens=False)
        asked, stops = [], []
        for number, request in enumerate(requests):
            context, kwargs = request.args
            kwargs = normalize_gen_kwargs(kwargs, self.max_gen_toks)
            stops.append(handle_stop_sequences(kwargs.pop('until', None), eos=end))
            asked.append(self._request(context, kwargs, number, [self._eot] + self._ids(stops[-1])))
        texts = self._generated(asked, stops)
        for request, text in zip(requests, texts):
            self.cache_hook.add_partial('generate_until', request.args, text)
        return texts

    def _request(self, context: str, kwargs: Dict[str, Any], number: int, stop_tokens: List[int]) -> Request:
        length = kwargs.pop('max_gen_toks')
        room = self.max_length - length
        if room < 1:
            raise ValueError('max_gen_toks is %d; seq_len is %d, of which a context needs some' % (length, self.max_length))
        sampling = {name: kwargs.pop(name) for name in ('temperature', 'top_k', 'top_p', 'min_p') if name in kwargs}
        if not kwargs.pop('do_sample', False):
            sampling = {'temperature': 0.0}
        if kwargs:
            raise ValueError('gen_kwargs has %s, which this model does not know' % ', '.join(sorted(kwargs)))
        prompt = self.tok_encode(context)[-room:] or [self._prefix]
        return Request(prompt=prompt, max_tokens=length, seed=self._seed + number, stop_tokens=stop_tokens, **sampling)

    def _generated(self, asked: List[Request], stops: List[List[str]]) -> List[str]:
        """A sample ends as soon as its text has a stop string."""

        def of_share(share: Sequence[int]) -> List[str]:
            texts = [''] * len(share)
            with self.run.stream([asked[number] for number in share], self.tokenizer) as events:
                for event in events:
                    texts[event.request] += event.text or ''
                    if event.finish is None and any(stop in texts[event.request] for stop in stops[share[event.request]] if stop):
                        events.cancel(event.request)
            return texts

        texts = self._shares.texts(asked, of_share)
        return [postprocess_generated_text(text, stop, None) for text, stop in zip(texts, stops)]
