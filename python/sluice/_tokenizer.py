"""Tokenizer: the model's tokenizer under the names of transformers, as LLM.get_tokenizer gives it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice._llm import LLM


class Tokenizer:
    """Encodes, decodes and applies the chat template. Any thread may call it; it keeps its LLM alive."""

    def __init__(self, llm: "LLM") -> None:
        self._llm = llm

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text in which special tokens may be written out, as transformers reads them."""
        return self._llm.tokenize(text, add_special_tokens=add_special_tokens, parse_special=True)

    def decode(self, token_ids: int | Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return self._llm.detokenize([token_ids] if isinstance(token_ids, int) else token_ids)

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]],
                            tools: Sequence[Mapping[str, Any]] | None = None, *, tokenize: bool = True,
                            add_generation_prompt: bool = False, continue_final_message: bool = False,
                            **variables: Any) -> str | list[int]:
        """The conversation as the template writes it: ids, or with tokenize=False their text. variables: of the
        template."""
        ids = self._llm.chat_prompt(conversation, tools=tools, add_generation_prompt=add_generation_prompt,
                                    continue_final_message=continue_final_message, chat_template_kwargs=variables)
        return ids if tokenize else self._llm.detokenize(ids)
