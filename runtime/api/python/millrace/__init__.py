"""Millrace: a training runtime for transformers, as a library.

    import millrace

    with millrace.Run({'model': {...}, 'train': {...}}) as run:
        run.init()
        for tokens in batches:          # [rows, seq_len + 1], int32: lists, numpy, torch
            print(run.step(tokens).loss)
        weights = numpy.from_dlpack(run.borrow('lm_head.weight'))

Errors are exceptions of class Error, one subclass for each code of millrace.h. Nothing is printed, no
environment variable read, no signal handled.
"""
from ._errors import (BorrowedError, BusyError, CallbackError, CheckpointError, ConfigError, DataError, DeviceError, DoesNotFitError, Error,
                      InternalError, InvalidArgument, NonFiniteError, PeerLostError, ReleasedError, RunFailed, StorageError, StallError, Unsupported)
from ._generate import Answer, Request
from ._native import VERSION as __version__
from ._native import config_schema
from ._run import Evaluation, Info, Memory, PolicyFigures, Run, Scores, StepResult
from ._stream import Event, EventStream
from ._tensor import Tensor
from ._tokenizer import Tokenizer

__all__ = [
    'Answer', 'BorrowedError', 'BusyError', 'CallbackError', 'CheckpointError', 'ConfigError', 'DataError', 'DeviceError', 'DoesNotFitError', 'Error',
    'Evaluation', 'Event', 'EventStream', 'Info', 'InternalError', 'InvalidArgument', 'Memory', 'NonFiniteError', 'PeerLostError', 'PolicyFigures',
    'ReleasedError', 'Request', 'Run', 'RunFailed', 'Scores', 'StallError', 'StepResult', 'StorageError', 'Tensor', 'Tokenizer', 'Unsupported',
    '__version__', 'config_schema'
]
