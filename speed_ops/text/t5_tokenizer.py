"""T5's tokenizer from a copy of its `tokenizer.json`; never a download."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ..errors import FileError
from .literal_tokenizer import LiteralTokenizer

END_TOKEN = 1
PAD_TOKEN = 0
FILE = "tokenizer.json"
IN_COMFYUI = Path("comfy", "text_encoders", "t5_tokenizer")


class T5Tokenizer(LiteralTokenizer):
    """Literal text to token ids. `from_files` makes one."""

    control = re.compile(r"</s>|<pad>|<unk>|<extra_id_\d+>")

    def __init__(self, encode: Callable[[str], list[int]], size: int) -> None:
        super().__init__(encode)
        self.size = size
        """Number of tokens."""

    @classmethod
    def from_files(cls, folder: Path) -> T5Tokenizer:
        """From a folder with `tokenizer.json`: of a diffusers model, or ComfyUI's own."""
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(folder / FILE))
        except Exception as error:  # the library raises bare exceptions for anything it cannot read
            raise FileError(f"The tokenizer in '{folder}' cannot be read ({error}).") from error
        if (tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<pad>")) != (END_TOKEN, PAD_TOKEN):
            raise FileError(f"The tokenizer in '{folder}' is not T5's: its end token is not {END_TOKEN}.")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(lambda text: tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.get_vocab_size())
