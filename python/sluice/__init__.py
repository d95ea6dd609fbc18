"""Sluice: text generation by large language models, with KV that may exceed the GPU's memory.

    from sluice import LLM, SamplingParams

    llm = LLM("models/needle")
    outputs = llm.generate(["It was a dark and"], SamplingParams(temperature=0, max_tokens=32))
    print(outputs[0].outputs[0].text)

Names and meanings are those of vLLM's offline classes; docs/python.md says what differs. The results are the same
bits that the command line `sluice` and the C++ library give.
"""

from sluice._async_llm import AsyncEngineArgs, AsyncLLM
from sluice._core import build_info
from sluice._errors import (DeviceError, DoesNotFitError, Error, FileError, InvalidArgumentError, ModelError,
                            RefusedError, UnsupportedError)
from sluice._llm import LLM, inspect
from sluice._outputs import (CompletionOutput, Logprob, PinInfo, RequestOutput, RequestStateStats, TokenScore,
                             Trace)
from sluice._params import RequestOutputKind, SamplingParams
from sluice._prompts import PromptType, TextPrompt, TokensPrompt
from sluice._structured import StructuredOutputsParams

__version__: str = build_info()["version"]

__all__ = ["LLM", "AsyncEngineArgs", "AsyncLLM", "CompletionOutput", "DeviceError", "DoesNotFitError", "Error",
           "FileError", "InvalidArgumentError", "Logprob", "ModelError", "PinInfo", "PromptType", "RefusedError",
           "RequestOutput", "RequestOutputKind", "RequestStateStats", "SamplingParams", "StructuredOutputsParams",
           "TextPrompt", "TokenScore", "TokensPrompt", "Trace", "UnsupportedError", "build_info", "inspect"]
