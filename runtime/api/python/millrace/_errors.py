"""An exception for each code of a status (millrace.h)."""
from typing import Dict, Type


class Error(Exception):
    """What the library refuses or fails at. `code` is that of millrace.h, `pointer` the JSON pointer of a wrong configuration key, or ''."""

    def __init__(self, message: str, code: int = 70, pointer: str = '') -> None:
        super().__init__(message)
        self.code = code
        self.pointer = pointer


class ConfigError(Error, ValueError):
    """The configuration; `pointer` names the key."""


class DataError(Error):
    """Data or a Hugging Face folder that cannot be read."""


class CheckpointError(Error):
    """No checkpoint, or a damaged one."""


class DoesNotFitError(Error, MemoryError):
    """The plan exceeds its budget, or the machine's memory."""


class ReleasedError(Error):
    """Memory that the call needs is released: acquire() comes first."""


class InvalidArgument(Error, ValueError):
    """An argument of the call; nothing has changed."""


class Unsupported(Error, NotImplementedError):
    """This library cannot do that; nothing has changed."""


class BorrowedError(Error):
    """Weights are lent, and the call would write them."""


class BusyError(Error):
    """The run is in another call."""


class RunFailed(Error):
    """An earlier error has left the run unusable."""


class CallbackError(Error):
    """A callback of the program failed."""


class InternalError(Error):
    """A bug of the library."""


class StallError(Error, TimeoutError):
    """A rank made no progress in time."""


class PeerLostError(Error, ConnectionError):
    """Another rank has gone."""


class NonFiniteError(Error, ArithmeticError):
    """Numbers that are not finite, where none may be."""


class StorageError(Error, OSError):
    """Files that cannot be read or written."""


class DeviceError(Error):
    """A device failed, or is missing."""


BY_CODE: Dict[int, Type[Error]] = {
    2: ConfigError,
    3: DataError,
    4: CheckpointError,
    5: DoesNotFitError,
    63: ReleasedError,
    64: InvalidArgument,
    65: Unsupported,
    66: BorrowedError,
    67: BusyError,
    68: RunFailed,
    69: CallbackError,
    70: InternalError,
    71: StallError,
    72: PeerLostError,
    73: NonFiniteError,
    74: StorageError,
    77: DeviceError,
}
