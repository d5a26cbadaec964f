"""Answers token by token."""
import atexit
import ctypes
import queue
import threading
import weakref
from typing import Any, Dict, NamedTuple, Optional, Sequence, Set, Tuple

from . import _native as native
from ._generate import Requests
from ._native import LIBRARY, Unshared, check
from ._tokenizer import Tokenizer

_FINISH: Dict[int, Optional[str]] = {-1: None, 0: 'stop', 1: 'length', 2: 'cancelled'}


class Event(NamedTuple):
    """A token of a sample, or its end, or both."""
    request: int
    sample: int
    index: int  # of the token in its answer; without one the answer's length
    token: Optional[int]  # None: the sample was cancelled
    logprob: float
    finish: Optional[str]  # None: it goes on; 'stop', 'length', 'cancelled'
    weight_version: int
    text: Optional[str]  # what can be shown by now and was not before; None without a tokenizer
    top_tokens: Sequence[int] = ()  # a row of Answer's, with Request.top_logprobs
    top_logprobs: Sequence[float] = ()


class _Feed:
    """Between the thread that makes events and the iterator that has them; it does not know the iterator, whose end is to be noticed.
    It holds the run, which else would be destroyed below the thread with its last reference."""

    def __init__(self, run: Any, handle: int, requests: Requests, tokenizer: Optional[Tokenizer]) -> None:
        self.events: 'queue.SimpleQueue[Any]' = queue.SimpleQueue()  # Event, or at last an exception or None
        self.closed = False
        self.cancelled: Set[Tuple[int, Optional[int]]] = set()
        self._run_of_handle, self._handle, self._requests, self._tokenizer = run, handle, requests, tokenizer
        # A daemon, as the interpreter else waits for it before anybody is asked to end it.
        self.thread = threading.Thread(target=self._run, name='millrace stream', daemon=True)
        self.thread.start()
        _feeds.add(self)

    def _run(self) -> None:
        ended: Optional[BaseException] = None
        try:
            options = native.StreamOptions(on_event=native.EventCallback(self._on_event))
            if self._tokenizer is not None:
                options.tokenizer = self._tokenizer.handle
            check(LIBRARY.mr_stream(self._handle, self._requests.pointers, self._requests.count, ctypes.byref(options)))
        except BaseException as error:  # the iterator's to raise
            ended = error
        self._run_of_handle = None
        self.events.put(ended)

    def _on_event(self, _: Any, at: int) -> Optional[int]:
        try:
            if self.closed:
                return LIBRARY.mr_status_new(69, b'the stream was closed')
            one = native.EventStruct.from_address(at)
            text = None
            if one.text is not None:
                text = ctypes.string_at(one.text, one.text_bytes).decode('utf-8', 'replace')
            if {(one.request, one.sample), (one.request, None)} & self.cancelled:
                one.cancel = 1
            self.events.put(
                Event(one.request, one.sample, one.index, None if one.token < 0 else one.token, one.logprob, _FINISH[one.finish],
                      one.weight_version, text, one.top_tokens[:one.top], one.top_logprobs[:one.top]))
            return None
        except BaseException as error:  # nothing of Python goes through C
            return LIBRARY.mr_status_new(69, ('%s: %s' % (type(error).__name__, error)).encode())


_feeds: 'weakref.WeakSet[_Feed]' = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """At the interpreter's end, while its threads can still run: nobody takes what they make."""
    feeds = list(_feeds)
    for feed in feeds:
        feed.closed = True
    for feed in feeds:
        feed.thread.join()


class EventStream(Unshared):
    """An iterator of Event. Run.stream makes it."""
    _feed: Optional[_Feed] = None

    def __init__(self, run: Any, handle: int, requests: Requests, tokenizer: Optional[Tokenizer]) -> None:
        self._feed = _Feed(run, handle, requests, tokenizer)

    def __iter__(self) -> 'EventStream':
        return self

    def __next__(self) -> Event:
        if self._feed is None:
            raise StopIteration
        event = self._feed.events.get()
        if isinstance(event, Event):
            return event
        feed, self._feed = self._feed, None
        feed.thread.join()
        if event is not None:
            raise event
        raise StopIteration

    def cancel(self, request: int, sample: Optional[int] = None) -> None:
        """Ends one sample of a request, or all of them, each behind the next token that is made for it."""
        if self._feed is not None:
            self._feed.cancelled.add((request, sample))

    def close(self) -> None:
        """Ends all; the run can be called again then. What was made and not taken is lost."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.closed = True
            if threading.current_thread() is not feed.thread:  # where a collection of garbage may run
                feed.thread.join()

    def __enter__(self) -> 'EventStream':
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
