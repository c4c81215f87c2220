"""Decides the role of inputs and the prompt before them, by pure functions of the model and the query."""

from __future__ import annotations

from embedserve_runtime.errors import InvalidInput, UnknownPrompt
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.routes import DOCUMENT, QUERY
from embedserve_runtime.service.types import EmbedQuery

# How much of an unknown name its error quotes.
MAX_QUOTED = 100


def is_query(card: ModelCard, query: EmbedQuery) -> bool:
    """Return whether the inputs are queries.

    Where the query does not say it, an asymmetric model decides; for other models inputs are documents. Raises
    InvalidInput where an asymmetric model has no default.
    """
    role = query.role
    name = query.prompt_name
    if role is None and name is None and query.prompt is None and card.late_interaction is not None:
        name = card.default_prompt
    if role is None and name in (QUERY, DOCUMENT):
        return name == QUERY
    if role is None and card.query is not None and name is not None and name == card.query.prompt:
        return True
    if role is None and card.query is not None:
        if card.query.default is None:
            raise InvalidInput(
                "this model treats queries and documents differently and takes no input for either unless it is told "
                f"which: set the prompt name (or the input type, where the route has one) to {QUERY} or {DOCUMENT}"
            )
        return card.query.default == QUERY
    return role == QUERY


def select_card(card: ModelCard, query: EmbedQuery) -> ModelCard:
    """Return the card that the inputs are encoded by. Raises InvalidInput."""
    return card.query.card if card.query is not None and is_query(card, query) else card


def resolve_prompt(card: ModelCard, query: EmbedQuery) -> str:
    """Return the text put before each input. Raises UnknownPrompt, InvalidInput."""
    name = query.prompt_name
    if query.prompt is not None:
        if name is not None:
            raise InvalidInput("`prompt` and `prompt_name` exclude each other")
        if query.prompt:
            _check_texts_only(query)
        return query.prompt
    if name is None:
        return _default_prompt(card, query)
    if card.query is not None and name in {QUERY, DOCUMENT} - set(card.prompts):
        return ""  # the name of a role that the model has without a prompt for it
    if name not in card.prompts:
        names = ", ".join(f'"{prompt}"' for prompt in card.prompts)
        raise UnknownPrompt(f"prompt name {name[:MAX_QUOTED]!r} does not exist. Available prompts: [{names}]")
    _check_texts_only(query)
    return card.prompts[name]


def _default_prompt(card: ModelCard, query: EmbedQuery) -> str:
    late = card.late_interaction
    if late is not None and (query.role is not None or card.default_prompt is None):
        return late.query_prompt if is_query(card, query) else late.document_prompt
    own = None if card.query is None else card.query.prompt
    if own is not None and is_query(card, query):
        return card.prompts.get(own, "")
    return card.default_prompt_text


def _check_texts_only(query: EmbedQuery) -> None:
    if not all(isinstance(item, str) for item in query.inputs):
        raise InvalidInput("a prompt cannot be put before token ids; send text, or ask for no prompt")
