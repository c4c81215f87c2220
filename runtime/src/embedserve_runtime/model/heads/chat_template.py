"""The prompt in which a model judges a pair, read off the folder's chat template.

CrossEncoder of sentence-transformers gives such a template, a Jinja program, messages with the roles "query" and
"document", and before them one with the role "system" where there is a prompt. Here the program is run on marks
instead of the texts, and what it writes around them is kept as data, with placeholders for the texts; a program that
changes the texts is refused. The program comes with the model and runs in Jinja's sandbox.

Sources: `apply_chat_template` of transformers 5.24; `InputFormatter` of sentence-transformers 6.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.heads.description import PromptTemplate
from embedserve_runtime.model.hf_files.tokenizers import (
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    ChatTemplateConfig,
    TokenizerJson,
)
from embedserve_runtime.model.vocabulary import UNUSED_TOKENS, read_special_tokens

TEMPLATE_FILE = "chat_template.jinja"
QUERY, DOCUMENT, INSTRUCTION = PLACEHOLDERS = ("query", "document", "instruction")
ROLE_OF: Mapping[str, str] = MappingProxyType({INSTRUCTION: "system", QUERY: QUERY, DOCUMENT: DOCUMENT})
MAX_CHARACTERS = 100_000
# What a program has that expects a message's content as a list of parts.
PART_SIGNS = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
# Pre-tokenizers that treat the beginning of a text otherwise than what follows a special token.
FIRST_TEXT_SIGNS = ("Metaspace", "Prepend")
# Values that a program which puts texts at their placeholders writes as they are: marks of the private use area, texts
# with what a program might escape, texts with white space at their ends.
_MARKS = {placeholder: f"\ue000{placeholder}\ue001" for placeholder in PLACEHOLDERS}
_ODD = {
    placeholder: f"\ue002 {{{placeholder}}}\n\n<{placeholder}> & \"'\\\ue003" for placeholder in PLACEHOLDERS
}
_PADDED = {placeholder: f" \n{mark}\n " for placeholder, mark in _MARKS.items()}


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The chat template of a model folder.

    path: of its file.
    """

    path: Path
    program: str

    @property
    def names_pair(self) -> bool:
        """Return whether the program itself tells queries from documents, and was not written for a chat alone."""
        return all(re.search(rf"['\"]{role}['\"]", self.program) for role in (QUERY, DOCUMENT))


def find_chat_template(files: ModelFiles) -> ChatTemplate | None:
    """Return the chat template of the tokenizer in `files`; None where it has none. Raises ModelInvalid."""
    own = files.find(TEMPLATE_FILE)
    if own is not None:
        return ChatTemplate(own.path, own.as_text())
    config = files.parse_if_there(TOKENIZER_CONFIG_FILE, ChatTemplateConfig, ChatTemplateConfig())
    program = config.chat_template
    if isinstance(program, list):
        program = next((each.template for each in program if each.name == "default"), None)
    return None if program is None else ChatTemplate(files.path / TOKENIZER_CONFIG_FILE, program)


def read_prompt_template(
    files: ModelFiles, template: ChatTemplate, content_format: str, variables: Mapping[str, object]
) -> PromptTemplate:
    """Return what the chat template writes around query, document and instruction.

    content_format: "flat" for texts as they are, "structured" for lists of parts, "auto" for what the program looks
    like. variables: further ones that the program is given. Raises UnsupportedArchitecture.
    """
    render = _compile(files, template, content_format, variables)
    plain, with_instruction = (
        _read_text(template, render, names) for names in ((QUERY, DOCUMENT), PLACEHOLDERS)
    )
    takes_instruction = f"{{{INSTRUCTION}}}" in with_instruction
    text = with_instruction if takes_instruction else plain
    return PromptTemplate(
        parts=_split_at_special_tokens(files, text),
        plain_parts=_split_at_special_tokens(files, plain) if takes_instruction else (),
        strips=_check_values(
            template, render, text, PLACEHOLDERS if takes_instruction else (QUERY, DOCUMENT)
        ),
    )


Render = Callable[[Mapping[str, str]], str]


def _compile(
    files: ModelFiles, template: ChatTemplate, content_format: str, variables: Mapping[str, object]
) -> Render:
    """Compile the program into a function of the texts by their placeholders."""
    # Imported here: few models have a chat template that is run.
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    structured = content_format == "structured" or (
        content_format == "auto" and any(sign in template.program for sign in PART_SIGNS)
    )
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
    context = {**read_special_tokens(files, [*UNUSED_TOKENS, "mask_token"]), **variables}

    def render(texts: Mapping[str, str]) -> str:
        messages = [
            {
                "role": role,
                "content": [{"type": "text", "text": texts[placeholder]}]
                if structured
                else texts[placeholder],
            }
            for placeholder, role in ROLE_OF.items()
            if placeholder in texts
        ]
        try:
            # Each of jinja2's errors is a TemplateError; operations on what is not there raise Python's own.
            return environment.from_string(template.program).render(
                messages=messages, tools=None, documents=None, add_generation_prompt=False, **context
            )
        except (TemplateError, TypeError, ValueError, KeyError, ArithmeticError) as error:
            raise UnsupportedArchitecture(
                f"{template.path}: the chat template cannot be filled with a query and a document: {error}; "
                "give it the roles query, document and system"
            ) from error

    return render


def _read_text(template: ChatTemplate, render: Render, placeholders: Sequence[str]) -> str:
    """Return what the program writes, with the placeholders in braces where it puts the texts. Raises
    UnsupportedArchitecture."""
    text = render({placeholder: _MARKS[placeholder] for placeholder in placeholders})
    if len(text) > MAX_CHARACTERS or any(f"{{{placeholder}}}" in text for placeholder in PLACEHOLDERS):
        raise UnsupportedArchitecture(
            f"{template.path}: a prompt of more than {MAX_CHARACTERS} characters, or one that writes a placeholder "
            "such as {query} itself, is not supported"
        )
    for placeholder in placeholders:
        text = text.replace(_MARKS[placeholder], f"{{{placeholder}}}")
    if f"{{{QUERY}}}" not in text or text.count(f"{{{DOCUMENT}}}") != 1:
        raise UnsupportedArchitecture(
            f"{template.path}: the chat template does not write the messages of the roles query (at least once) and "
            "document (once); a pair would be judged by something else than its texts. Give it a template that does"
        )
    return text


def _check_values(template: ChatTemplate, render: Render, text: str, placeholders: Sequence[str]) -> bool:
    """Return whether the program strips the texts. Raises UnsupportedArchitecture where it does anything else to
    them."""
    padded = {placeholder: _PADDED[placeholder] for placeholder in placeholders}
    stripped = {placeholder: value.strip() for placeholder, value in padded.items()}
    odd = {placeholder: _ODD[placeholder] for placeholder in placeholders}
    written = render(padded)
    if render(odd) != _fill(text, odd) or written not in (_fill(text, padded), _fill(text, stripped)):
        raise UnsupportedArchitecture(
            f"{template.path}: a chat template that changes query, document or prompt is not supported; supported is "
            "one that writes them as they are, or strips all of them"
        )
    return written != _fill(text, padded)


def _fill(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda placeholder: values.get(placeholder[1], placeholder[0]), text)


def _split_at_special_tokens(files: ModelFiles, text: str) -> tuple[str, ...]:
    """Split the prompt at the special tokens next to the document, so that what is around it is tokenized once. The
    tokens are those of the whole text."""
    file = files.parse(TOKENIZER_FILE, TokenizerJson)
    outer = json.dumps([file.normalizer, file.pre_tokenizer])
    tokens = [
        token.content
        for token in file.added_tokens
        if token.special and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
    ]
    if not tokens or any(sign in outer for sign in FIRST_TEXT_SIGNS) or '"add_prefix_space": true' in outer:
        return (text,)
    pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))
    placeholder = text.index(f"{{{DOCUMENT}}}")
    start = max((match.end() for match in pattern.finditer(text, 0, placeholder)), default=0)
    following = pattern.search(text, placeholder)
    stop = len(text) if following is None else following.start()
    return tuple(part for part in (text[:start], text[start:stop], text[stop:]) if part)
