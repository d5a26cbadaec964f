"""Millrace: a training runtime for transformers, as a library.

    import millrace

    with millrace.Run({'model': {...}, 'train': {...}}) as run:
        run.init()
        for tokens in batches:          # [rows, seq_len + 1], int32: lists, numpy, torch
            print(run.step(tokens).loss)
        weights = numpy.from_dlpack(run.borrow('lm_head.weight'))

Errors are exceptions of class Error, one subclass for each code of millrace.h. Nothing is printed, no
signal handled. Environment variables are OpenBLAS's, read when the library is loaded (OPENBLAS_CORETYPE
and seven more), and with CUDA those of NCCL, of which three are set to 0: NCCL_NVLS_ENABLE, and unless they
are there NCCL_GRAPH_REGISTER and NCCL_RAS_ENABLE.
"""
from ._arrow import Rows
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
    'Answer', 'BorrowedError', 'BusyError', 'CallbackError', 'CheckpointError', 'ConfigError', 'DataError', 'DeviceError', 'DoesNotFitError',
    'Error', 'Evaluation', 'Event', 'EventStream', 'Info', 'InternalError', 'InvalidArgument', 'Memory', 'NonFiniteError', 'PeerLostError',
    'PolicyFigures', 'ReleasedError', 'Request', 'Rows', 'Run', 'RunFailed', 'Scores', 'StallError', 'StepResult', 'StorageError', 'Tensor',
    'Tokenizer', 'Unsupported', '__version__', 'config_schema'
]
