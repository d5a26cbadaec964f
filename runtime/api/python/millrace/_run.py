"""A training run, by the functions of millrace.h."""
import array
import contextlib
import ctypes
import json
import os
from typing import Any, Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import _native as native
from ._errors import BusyError, InvalidArgument
from ._generate import Answer, Request, Requests, answers_of
from ._native import LIBRARY, Owner, check
from ._stream import EventStream
from ._tensor import Tensor, give_back_dropped
from ._tokenizer import Tokenizer
from .weights import ExportedWeights

Path = Union[str, 'os.PathLike[str]']
LEVELS = ('trace', 'debug', 'info', 'warning', 'error')


class PolicyFigures(NamedTuple):
    """How far the policy has moved from the one that has sampled: means over the targets of all ranks that count."""
    clip_fraction: float  # of targets whose ratio was clipped
    ratio: float  # of probabilities, new to old
    kl: float  # divergence in nats: from the reference, or without one from the old policy


class StepResult(NamedTuple):
    step: int  # steps done
    loss: float  # mean over the targets of all ranks, before the update
    grad_norm: float
    lr: float
    targets: int
    weight_version: int
    applied: bool  # False: numbers were not finite, and no weight has changed
    policy: Optional[PolicyFigures]  # of a policy gradient


class Evaluation(NamedTuple):
    loss: float
    targets: int


class Scores(NamedTuple):
    """Of targets: 2-D memoryviews, [rows, seq_len], which numpy.asarray takes without a copy."""
    logprobs: memoryview  # float64: of each target, given the tokens before it
    likeliest: Optional[memoryview]  # int32: the token that the model finds likeliest there; -1: numbers are not finite. None: not asked for


class Info(NamedTuple):
    parameters: int
    step: int
    arena_bytes: int
    weight_version: int
    vocab: int
    seq_len: int
    step_sequences: int
    eval_sequences: int
    rank: int
    world: int
    lent: int
    released_bytes: int  # of the arena, without memory until acquire()


class Memory(NamedTuple):
    """What release() has given back, or acquire() brought."""
    bytes: int  # of the device
    host_bytes: int  # of states, that lie in host memory between the two
    seconds: float


PARTS = {'era': 1, 'copies': 2, 'all': 3}


def _text(path: Optional[Path]) -> Optional[bytes]:
    return None if path is None else native.text(os.fsencode(os.fspath(path)), 'a path')


class _Tokens:
    """Rows of tokens as C has them. Nested lists and buffers of another integer type are copied, int32 rows are not."""

    def __init__(self, tokens: Any, columns: int) -> None:
        if hasattr(tokens, 'detach'):  # torch
            tokens = tokens.detach().cpu().numpy()
        if hasattr(tokens, 'astype') and tokens.dtype.kind in 'iu' and tokens.dtype != 'int32' and tokens.size:  # numpy
            self._checked([int(tokens.min()), int(tokens.max())])
            tokens = tokens.astype('int32')
        try:
            view = memoryview(tokens)
        except TypeError:
            rows = [list(row) for row in tokens]
            self._require(all(len(row) == columns for row in rows), [len(rows), [len(row) for row in rows]], columns)
            self._set(array.array('i', self._checked(value for row in rows for value in row)), len(rows))
            return
        self._require(view.ndim == 2 and view.shape[1] == columns, view.shape, columns)
        if view.format == 'i' and view.itemsize == 4 and view.c_contiguous:
            self._set(view.cast('B').cast('i') if view.nbytes else view, view.shape[0])
        elif view.format in 'bBhHiIlLqQ':
            self._set(array.array('i', self._checked(value for row in view.tolist() for value in row)), view.shape[0])
        else:
            raise InvalidArgument('tokens have the format %r; integers are needed' % view.format, 64)

    @staticmethod
    def _require(holds: bool, shape: Any, columns: int) -> None:
        if not holds:
            raise InvalidArgument('tokens have the shape %s; [rows, %d] is needed: seq_len tokens and the last target' % (shape, columns), 64)

    @staticmethod
    def _checked(values: Any) -> List[int]:
        return native.checked_integers(values, 'tokens hold')

    def _set(self, values: Any, rows: int) -> None:
        self._keep = values
        if isinstance(values, memoryview) and values.readonly:
            self._keep = values = array.array('i', values.tobytes())
        pointer = ctypes.cast((ctypes.c_char * max(1, len(values) * 4)).from_buffer(values), ctypes.POINTER(ctypes.c_int32)) if rows else None
        self.batch = native.Batch(tokens=pointer, sequences=rows)


def _floats(values: Any, rows: int, columns: int, what: str) -> 'ctypes.Array[ctypes.c_float]':
    """[rows, columns] values of targets, copied: fast where a buffer of float32 has them."""
    try:
        view: Optional[memoryview] = memoryview(values)
    except (TypeError, ValueError, BufferError):
        view = None
    if view is not None and view.format == 'f' and view.c_contiguous and view.shape == (rows, columns):
        return (ctypes.c_float * (rows * columns)).from_buffer_copy(view)
    listed = values.tolist() if hasattr(values, 'tolist') else [list(row) for row in values]
    if len(listed) != rows or any(not isinstance(row, list) or len(row) != columns for row in listed):
        raise InvalidArgument('%s need the shape [%d, %d], a value for each target' % (what, rows, columns), 64)
    return (ctypes.c_float * (rows * columns))(*(float(value) for row in listed for value in row))


class Run(Owner):
    """One rank of a training run. A context manager; close() ends it.

    config   a mapping or JSON text, as of a file that `millrace train` takes
    log      called with a level ('info', 'warning', ...) and a text
    use_data opens the configuration's data, for steps and evaluations without tokens
    use_inference plans what section inference of the configuration says, for generate(), stream() and score()
    device   the number of the GPU, of a run of one rank; of several each takes the one of its place on its host
    exchange with world above 1: an all-gather between ranks, from this rank's bytes to those of all
    mpi      instead of rank, world and exchange: True for the ranks of mpirun, or a communicator of mpi4py. Open MPI, which the library
             opens then
    on_stall called on another thread when no rank makes progress for execution.watchdog_s
    """
    def __init__(self,
                 config: Union[str, Mapping[str, Any]],
                 *,
                 rank: int = 0,
                 world: int = 1,
                 device: int = 0,
                 use_data: bool = False,
                 use_inference: bool = False,
                 log: Optional[Callable[[str, str], None]] = None,
                 exchange: Optional[Callable[[bytes], Sequence[bytes]]] = None,
                 mpi: Any = None,
                 on_stall: Optional[Callable[[str], None]] = None) -> None:
        text = config if isinstance(config, str) else json.dumps(config)
        options = native.RunOptions(config=native.text(text.encode(), 'the configuration'), rank=rank, world=world, device=device,
                                    use_data=int(use_data), use_inference=int(use_inference))
        raised: List[BaseException] = []
        # The library calls these for as long as the run lives.
        self._callbacks: List[Any] = []
        if log is not None:
            options.log = self._keep(native.LogCallback(lambda _, level, said: log(LEVELS[level], said.decode('utf-8', 'replace'))))
        if on_stall is not None:
            options.on_stall = self._keep(native.StallCallback(lambda _, said: on_stall(said.decode('utf-8', 'replace'))))
        if exchange is not None:
            options.exchange = self._keep(native.ExchangeCallback(_exchange_of(exchange, rank, world, raised)))
        if mpi is not None:
            options.mpi = ctypes.pointer(_mpi_of(mpi))
        self._exchange = exchange if mpi is None else None if mpi is True else mpi.allgather  # None: one rank, or mpirun's
        handle = ctypes.c_void_p()
        try:
            check(LIBRARY.mr_run_create(ctypes.byref(options), ctypes.byref(handle)))
        except native.Error as error:
            raise error from (raised[0] if raised else None)
        self._held = handle.value
        self._columns = self.info.seq_len + 1
        self._is_policy = self.config['train']['loss'] == 'policy_gradient'

    def _keep(self, callback: Any) -> Any:
        self._callbacks.append(callback)
        return callback

    def close(self) -> None:
        """Ends the run. Weights that are lent stay valid until they are given back."""
        held, self._held = self._held, None
        try:
            check(LIBRARY.mr_run_destroy(held))
        except BusyError:  # another thread is in a call, and the run goes on
            self._held = held
            raise

    def init(self) -> None:
        """Fresh weights: model.init_from, or by train.seed."""
        give_back_dropped()
        check(LIBRARY.mr_init(self.handle))

    def load(self, run_dir: Optional[Path] = None) -> None:
        """The newest checkpoint of a run folder; None: run.dir."""
        give_back_dropped()
        check(LIBRARY.mr_load(self.handle, _text(run_dir)))

    def save(self, run_dir: Optional[Path] = None) -> None:
        """A checkpoint in a run folder, for load() and `millrace train`; None: run.dir."""
        check(LIBRARY.mr_save(self.handle, _text(run_dir)))

    def import_weights(self, folder: Path) -> None:
        """Weights of a Hugging Face folder."""
        give_back_dropped()
        check(LIBRARY.mr_import(self.handle, _text(folder)))

    def export(self, folder: Path) -> None:
        """config.json and safetensors for transformers, into a new folder."""
        check(LIBRARY.mr_export(self.handle, _text(folder)))

    def step(self,
             tokens: Any = None,
             *,
             weights: Any = None,
             advantages: Any = None,
             old_logprobs: Any = None,
             reference_logprobs: Any = None) -> StepResult:
        """One training step on [rows, seq_len + 1] tokens of this rank; None: the configuration's data.

        The others are [rows, seq_len] values of targets: weights where train.loss_weights is true, the rest for a policy gradient
        (train.loss)."""
        given = None if tokens is None else _Tokens(tokens, self._columns)
        told = {'weights': weights, 'advantages': advantages, 'old_logprobs': old_logprobs, 'reference_logprobs': reference_logprobs}
        for name, values in told.items():
            if values is None:
                continue
            if given is None:
                raise InvalidArgument('%s without tokens' % name, 64)
            setattr(given.batch, name,
                    ctypes.cast(_floats(values, given.batch.sequences, self._columns - 1, name), ctypes.POINTER(ctypes.c_float)))
        result = native.StepStruct()
        give_back_dropped()
        check(LIBRARY.mr_step(self.handle, None if given is None else ctypes.byref(given.batch), ctypes.byref(result)))
        policy = PolicyFigures(result.clip_fraction, result.ratio, result.kl) if self._is_policy else None
        return StepResult(result.step, result.loss, result.grad_norm, result.lr, result.targets, result.weight_version, bool(result.applied),
                          policy)

    def evaluate(self, tokens: Any = None) -> Evaluation:
        """Held-out loss on a multiple of info.eval_sequences rows; None: the configuration's data."""
        given = None if tokens is None else _Tokens(tokens, self._columns)
        result = native.EvaluationStruct()
        check(LIBRARY.mr_evaluate(self.handle, None if given is None else ctypes.byref(given.batch), ctypes.byref(result)))
        return Evaluation(result.loss, result.targets)

    def score(self, tokens: Any, *, likeliest: bool = True) -> Scores:
        """The log-probability of each target of a multiple of info.eval_sequences rows, with the bits of training, and the likeliest token in its
        place. Needs use_inference."""
        given = _Tokens(tokens, self._columns)
        columns = self._columns - 1
        count = given.batch.sequences * columns
        shape = [given.batch.sequences, columns]
        logprobs = array.array('d', bytes(8 * count))
        to = (ctypes.c_double * count).from_buffer(logprobs)
        if not likeliest:
            check(LIBRARY.mr_score(self.handle, ctypes.byref(given.batch), to, count))
            return Scores(memoryview(logprobs).cast('B').cast('d', shape), None)
        found = array.array('i', bytes(4 * count))
        check(LIBRARY.mr_score_likeliest(self.handle, ctypes.byref(given.batch), to, (ctypes.c_int32 * count).from_buffer(found), count))
        return Scores(memoryview(logprobs).cast('B').cast('d', shape), memoryview(found).cast('B').cast('i', shape))

    def generate(self, requests: Sequence[Request]) -> List[Answer]:
        """Answers to all requests, batched; of a request its samples follow each other. Needs use_inference."""
        given = Requests(requests)
        handle = ctypes.c_void_p()
        check(LIBRARY.mr_generate(self.handle, given.pointers, given.count, ctypes.byref(handle)))
        try:
            return answers_of(handle)
        finally:
            LIBRARY.mr_answers_free(handle)

    def stream(self, requests: Sequence[Request], tokenizer: Optional[Tokenizer] = None) -> EventStream:
        """The tokens of generate() as they come, an iterator of Event; with a tokenizer their text, too.

        They are made on a thread, ahead of whoever takes them, and until the last one is made other calls of the run raise BusyError.
        Leaving the iterator (close(), a `with` block's end, its last reference) ends them."""
        return EventStream(self, self.handle, Requests(requests), tokenizer)

    def release(self, part: str = 'era') -> Memory:
        """Gives physical memory of the arena back until acquire(); numbers stay what they would have been. Collective.

        part 'era'    all but the states of the run: caches and gathered weights of inference, activations, buffers of steps
             'copies' copies of weights
             'all'    weights and moments lie in host memory meanwhile"""
        if part not in PARTS:
            raise InvalidArgument('part is %r; allowed are %s' % (part, ', '.join(map(repr, PARTS))), 64)
        result = native.MemoryStruct()
        give_back_dropped()
        check(LIBRARY.mr_release(self.handle, PARTS[part], ctypes.byref(result)))
        return Memory(result.bytes, result.host_bytes, result.seconds)

    def acquire(self) -> Memory:
        """Brings back what was released. DoesNotFitError: the memory is not there yet; it may be tried again. Collective."""
        result = native.MemoryStruct()
        check(LIBRARY.mr_acquire(self.handle, ctypes.byref(result)))
        return Memory(result.bytes, result.host_bytes, result.seconds)

    @contextlib.contextmanager
    def released(self, part: str = 'era') -> Iterator[Memory]:
        """release() for a `with` block, at whose end, whatever ends it, is acquire()."""
        memory = self.release(part)
        try:
            yield memory
        finally:
            self.acquire()

    @property
    def info(self) -> Info:
        info = native.InfoStruct()
        give_back_dropped()
        check(LIBRARY.mr_run_info(self.handle, ctypes.byref(info)))
        return Info(*(getattr(info, name) for name in Info._fields))

    def gather(self, own: bytes) -> List[bytes]:
        """What each rank has to say, of any length, by rank. Collective: for programs whose ranks share out work."""
        info = self.info
        if info.world == 1:
            return [own]
        exchange = self._exchange or _exchange_of_mpirun(info.world)
        lengths = [int.from_bytes(length, 'little') for length in exchange(len(own).to_bytes(8, 'little'))]
        parts = exchange(own.ljust(max(lengths), b'\0'))
        return [bytes(part[:length]) for part, length in zip(parts, lengths)]

    @property
    def config(self) -> Any:
        """Every key with its value."""
        text = ctypes.c_char_p()
        check(LIBRARY.mr_run_config(self.handle, ctypes.byref(text)))
        assert text.value is not None
        return json.loads(text.value)

    @property
    def weight_names(self) -> List[str]:
        """Of borrow(), as export() writes them."""
        count, name, names = ctypes.c_int64(), ctypes.c_char_p(), []
        check(LIBRARY.mr_weights_count(self.handle, ctypes.byref(count)))
        for index in range(count.value):
            check(LIBRARY.mr_weights_name(self.handle, index, ctypes.byref(name)))
            assert name.value is not None
            names.append(name.value.decode())
        return names

    def export_weights(self) -> ExportedWeights:
        """The weights of now in a memory of their own, for other processes of this host (millrace.weights). Collective."""
        shared = native.SharedWeightsStruct()
        check(LIBRARY.mr_weights_export(self.handle, ctypes.byref(shared)))
        return ExportedWeights(shared.fd, shared.manifest.decode())

    def borrow(self, name: str) -> Tensor:
        """Weights in place, read-only; steps are refused until it is given back."""
        return Tensor(self, self.handle, name)


def _mpi_of(mpi: Any) -> native.Mpi:
    if mpi is True:
        return native.Mpi()
    try:
        from mpi4py import MPI  # who has a communicator has it
        return native.Mpi(comm=MPI._addressof(mpi))
    except (ImportError, TypeError):
        raise InvalidArgument('mpi is %r; allowed are True and a communicator of mpi4py' % (mpi,), 64) from None


def _exchange_of_mpirun(world: int) -> Callable[[bytes], Sequence[bytes]]:
    """An all-gather over the ranks of mpirun, by the library that the run has opened."""
    mpi = ctypes.CDLL('libmpi.so.40', ctypes.RTLD_GLOBAL)
    ranks, byte = (ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name))) for name in ('ompi_mpi_comm_world', 'ompi_mpi_byte'))

    def exchange(own: bytes) -> Sequence[bytes]:
        all_of_them = ctypes.create_string_buffer(max(1, len(own) * world))
        code = mpi.MPI_Allgather(own, len(own), byte, all_of_them, len(own), byte, ranks)
        if code != 0:
            raise native.Error('MPI_Allgather returned %d' % code, 69)
        return [all_of_them.raw[len(own) * rank:len(own) * (rank + 1)] for rank in range(world)]

    return exchange


def _exchange_of(exchange: Callable[[bytes], Sequence[bytes]], rank: int, world: int, raised: List[BaseException]) -> Any:

    def call(_: Any, buffer: int, each: int) -> Optional[int]:
        try:
            parts = exchange(ctypes.string_at(buffer + rank * each, each))
            if len(parts) != world or any(len(part) != each for part in parts):
                raise ValueError('an exchange gave %s bytes, and not %d times %d' % ([len(part) for part in parts], world, each))
            ctypes.memmove(buffer, b''.join(parts), world * each)
            return None
        except BaseException as error:  # it ends in a status, and is raised behind it
            raised.append(error)
            return LIBRARY.mr_status_new(69, ('%s: %s' % (type(error).__name__, error)).encode())

    return call
