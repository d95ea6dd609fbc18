"""Errors of the engine as exceptions, one class for each code of the C++ library.

Each class also derives from the built-in class that fits, so `except ValueError` works. The text names the thing, the
value and the remedy.
"""


class Error(Exception):
    """The base class of everything that the engine raises.

    code: the class of the error, a text such as "invalid argument".
    message: a sentence that names the thing, the value and the remedy.
    context: where it happened, such as a file or a prompt's index; may be empty.
    """

    code: str = ""

    def __init__(self, message: str, context: str = "") -> None:
        super().__init__(f"{context}: {message}" if context else message)
        self.message = message
        self.context = context

    def __reduce__(self) -> tuple[type["Error"], tuple[str, str]]:
        return type(self), (self.message, self.context)


class InvalidArgumentError(Error, ValueError):
    """An option, a prompt or a parameter is out of its range."""

    code = "invalid argument"


class ModelError(Error, ValueError):
    """A model directory, its configuration, weights or tokenizer is missing or wrong."""

    code = "model"


class UnsupportedError(Error, NotImplementedError):
    """Something well-formed that Sluice does not do."""

    code = "unsupported"


class DoesNotFitError(Error, MemoryError, ValueError):
    """Memory, the context length or another budget is too small. A ValueError as well, as vLLM raises it for a prompt
    that is too long."""

    code = "does not fit"


class FileError(Error, OSError):
    """A file cannot be read or written."""

    code = "input/output"


class DeviceError(Error, RuntimeError):
    """A device failed. The engine cannot be used any more."""

    code = "device"


class RefusedError(Error, RuntimeError):
    """AsyncLLM did not accept a request: too many wait, it was shut down, or the engine failed."""

    code = "refused"


_CLASSES: dict[str, type[Error]] = {
    c.code: c for c in (InvalidArgumentError, ModelError, UnsupportedError, DoesNotFitError, FileError, DeviceError)}


def of_code(code: str, message: str, context: str) -> Error:
    """Called by the C++ module for each error."""
    return _CLASSES[code](message, context)
