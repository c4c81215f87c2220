"""Tokenizes inputs into the token ids that the model reads; docs/tokenizing.md has the rules of truncation.

    texts      one text a sequence, with its prompt; id arrays; places of tokens
    pairs      two texts a sequence, by the tokenizer's own template
    templates  a written prompt around query and document, for models that answer yes or no
    reader     the library behind calls that are safe from several threads and bounded in memory
    layout     what tokenizer.json says, read once
    words      texts word by word, out of a table, where words do not depend on each other
    pre_tokenizer  what happens to a word of ASCII around the tokenizer's model
    compiled   texts of static models by compiled loops
    characters what the tokenizer makes of each character, for those
    truncation which tokens stay
    input_encoders how queries and documents become sequences

Calls block for as long as tokenising takes: `service` keeps long ones off the event loop.
"""

from __future__ import annotations

from embedserve_runtime.tokenizing.input_encoders import InputEncoders
from embedserve_runtime.tokenizing.reader import FEW_CHARACTERS, PIECE_TEXTS, Token
from embedserve_runtime.tokenizing.templates import TemplateEncoder
from embedserve_runtime.tokenizing.texts import Input, TextTokenizer
from embedserve_runtime.tokenizing.truncation import Side, TruncationRules

__all__ = [
    "FEW_CHARACTERS",
    "PIECE_TEXTS",
    "Input",
    "InputEncoders",
    "Side",
    "TemplateEncoder",
    "TextTokenizer",
    "Token",
    "TruncationRules",
]
