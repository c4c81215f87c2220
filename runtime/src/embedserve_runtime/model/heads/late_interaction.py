"""Multi-vector models (ColBERT): what the folder says of queries and documents besides the projection of each token.

Sources: sentence-transformers 6.2's MultiVectorEncoder, and how it reads the folders that PyLate saved before, and
those of Stanford's ColBERT.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.dense_modules import MULTI_VECTOR_TYPES
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.heads.config import HeadConfig
from embedserve_runtime.model.heads.description import (
    HeadLayer,
    LateInteraction,
    MultiVectorHead,
    QueryExpansion,
    TokenPooling,
)
from embedserve_runtime.model.hf_files.colbert import (
    METADATA_FILE,
    ColbertMetadata,
    PyLateConfig,
    RoleLengths,
)
from embedserve_runtime.model.hf_files.sentence_transformers import (
    SENTENCE_TRANSFORMERS_FILE,
    HierarchicalTokenPoolingConfig,
    MultiVectorMaskConfig,
)
from embedserve_runtime.model.modules import ModelLayout, Modules
from embedserve_runtime.model.vocabulary import read_special_tokens, read_token_ids

log = logging.getLogger(__name__)

# The class of its checkpoints.
STANFORD = "HF_ColBERT"
# ColBERT's own length of a query, where PyLate's files do not say it.
QUERY_LENGTH = 32
# Names of the prompt of each role, the first that the model has.
QUERY, DOCUMENT = ROLES = ("query", "document")
QUERY_PROMPTS, DOCUMENT_PROMPTS = (QUERY,), (DOCUMENT, "passage", "corpus")


def is_stanford_colbert(config: HeadConfig) -> bool:
    """Return whether a checkpoint without modules.json is one of Stanford's ColBERT, with a projection next to the
    encoder."""
    return STANFORD in (config.architectures or [])


def read_multi_vector_head(files: ModelFiles, encoder: Encoder, layout: ModelLayout) -> MultiVectorHead:
    """Read the head of a multi-vector model. Raises ModelInvalid or UnsupportedArchitecture, naming file and key."""
    modules = layout.modules
    if not modules.has_modules_file and is_stanford_colbert(files.parse("config.json", HeadConfig)):
        return _read_stanford(files, encoder, layout)
    pylate = files.parse_if_there(SENTENCE_TRANSFORMERS_FILE, PyLateConfig, PyLateConfig())
    old = pylate.model_type == "ColBERT"  # PyLate before 4 normalized and skipped without a module for it
    size = encoder.width
    layers = []
    for dense in modules.token_dense:
        if dense.in_features != size:
            raise UnsupportedArchitecture(
                f"{files.path / dense.folder}: takes {dense.in_features} features, the step before gives {size}"
            )
        size = dense.out_features
        layers.append(HeadLayer.from_dense(dense))
    interaction = _describe_interaction(files, layout, pylate)
    _check_expansion(files.path, encoder, interaction.expansion)
    return MultiVectorHead(tuple(layers), modules.token_normalize or old, interaction=interaction)


def _read_stanford(files: ModelFiles, encoder: Encoder, layout: ModelLayout) -> MultiVectorHead:
    metadata = files.parse_if_there(METADATA_FILE, ColbertMetadata, ColbertMetadata())
    interaction = _describe_interaction(files, layout, _translate(metadata))
    _check_expansion(files.path, encoder, interaction.expansion)
    layer = HeadLayer(encoder.width, metadata.dim, ("linear.weight",), ())
    return MultiVectorHead((layer,), normalize=True, interaction=interaction)


def _translate(metadata: ColbertMetadata) -> PyLateConfig:
    """Return the settings of ColBERT of Stanford under the names of PyLate, with its default of what is skipped."""
    return PyLateConfig(
        model_type=MULTI_VECTOR_TYPES[0],
        query_prefix=f"{metadata.query_token_id or '[unused0]'} ",
        document_prefix=f"{metadata.doc_token_id or '[unused1]'} ",
        query_length=metadata.query_maxlen,
        document_length=metadata.doc_maxlen,
        attend_to_expansion_tokens=bool(metadata.attend_to_mask_tokens),
        skiplist_words=list(string.punctuation) if metadata.mask_punctuation else [],
    )


def add_markers(layout: ModelLayout, late: LateInteraction) -> ModelLayout:
    """Return the layout with the markers in the prompts and with the documents' length for all inputs."""
    prompts = {
        name: prompt
        for name, prompt in ((QUERY, late.query_prompt), (DOCUMENT, late.document_prompt))
        if prompt or name in layout.prompts
    }
    max_length = late.document_length or layout.max_length
    return replace(layout, prompts={**layout.prompts, **prompts}, max_length=max_length)


def replace_prompts(late: LateInteraction, prompts: Mapping[str, str]) -> LateInteraction:
    """Return the interaction with the service's prompts instead of the model's own."""
    return replace(
        late,
        query_prompt=prompts.get(QUERY, ""),
        document_prompt=prompts.get(DOCUMENT, ""),
    )


def _describe_interaction(files: ModelFiles, layout: ModelLayout, pylate: PyLateConfig) -> LateInteraction:
    modules = layout.modules
    encoder_files = files.enter_folder(modules.transformer)
    ids = read_token_ids(encoder_files)
    own = encoder_files.parse_if_there("sentence_bert_config.json", RoleLengths, RoleLengths())
    expansion = _describe_expansion(encoder_files, own, pylate, ids)
    skipped, skipped_roles = _read_skipped_tokens(files, modules, pylate, ids)
    pooling, pooled_roles = _read_pooling(files, modules)
    prefixes = (pylate.query_prefix or "", pylate.document_prefix or "")
    return LateInteraction(
        query_prompt=_join_prompt(layout.prompts, prefixes[0], QUERY_PROMPTS),
        document_prompt=_join_prompt(layout.prompts, prefixes[1], DOCUMENT_PROMPTS),
        markers=tuple(prefix for prefix in prefixes if prefix.strip()),
        query_length=expansion.length
        if expansion is not None and expansion.fixed
        else own.query_length or pylate.query_length,
        document_length=own.document_length or pylate.document_length,
        expansion=expansion,
        skipped=skipped,
        skipped_roles=skipped_roles,
        pooling=pooling,
        pooled_roles=pooled_roles,
    )


def _join_prompt(prompts: Mapping[str, str], prefix: str, names: Sequence[str]) -> str:
    """Join a marker and a prompt, which PyLate keeps apart."""
    prompt = next((prompts[name] for name in names if name in prompts), "")
    return prefix + prompt.removeprefix(prefix)


def _read_skipped_tokens(
    files: ModelFiles, modules: Modules, pylate: PyLateConfig, ids: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    mask = MultiVectorMaskConfig()
    if modules.mask is not None:
        own = files.enter_folder(modules.mask)
        mask = own.parse_if_there("config.json", MultiVectorMaskConfig, MultiVectorMaskConfig())
        if mask.keep_only_token_ids:
            path = own.path / "config.json"
            raise UnsupportedArchitecture(f"{path}: keep_only_token_ids is for images and is not supported")
    skiplist = mask.skiplist_words
    if skiplist is None and pylate.model_type == "ColBERT":
        skiplist = pylate.skiplist_words if pylate.skiplist_words is not None else list(string.punctuation)
    unknown = [token for token in skiplist or () if token not in ids]
    if unknown:
        log.warning("words to skip are no tokens of the model and are not skipped", extra={"words": unknown})
    skipped = sorted({ids[token] for token in skiplist or () if token in ids})
    return tuple(skipped), _read_roles(files.path, mask.skiplist_tasks)


def _read_pooling(files: ModelFiles, modules: Modules) -> tuple[TokenPooling | None, tuple[str, ...]]:
    if modules.token_pooling is None:
        return None, ()
    config = files.enter_folder(modules.token_pooling).parse("config.json", HierarchicalTokenPoolingConfig)
    pooling = TokenPooling(config.pool_factor, config.num_protected_tokens, config.normalize_embeddings)
    return pooling, _read_roles(files.path, config.tasks)


def _read_roles(folder: Path, tasks: str | list[str] | None) -> tuple[str, ...]:
    roles = tuple([tasks] if isinstance(tasks, str) else tasks if tasks is not None else ["document"])
    if unknown := [role for role in roles if role not in ROLES]:
        raise UnsupportedArchitecture(f"{folder}: a module is for the task {unknown[0]!r}, known are {ROLES}")
    return roles


def _describe_expansion(
    encoder_files: ModelFiles, own: RoleLengths, pylate: PyLateConfig, ids: Mapping[str, int]
) -> QueryExpansion | None:
    for file in (own, pylate):
        if "query_expansion" in file.model_fields_set:
            settings = file.query_expansion
            if settings is None:
                return None
            token = _find_expansion_token(encoder_files, settings.token, ids)
            return QueryExpansion(settings.length, settings.strategy == "fixed", settings.attend, token)
    if not pylate.has_settings or not pylate.do_query_expansion:
        return None
    attend = pylate.attend_to_expansion_tokens
    if attend is None:
        attend = pylate.attend_to_mask_tokens
    token = _find_expansion_token(encoder_files, None, ids)
    return QueryExpansion(pylate.query_length or QUERY_LENGTH, fixed=True, attend=bool(attend), token=token)


def _find_expansion_token(encoder_files: ModelFiles, token: str | None, ids: Mapping[str, int]) -> int:
    """Find the token that was asked for, else the tokenizer's mask, else its end. Raises ModelInvalid."""
    if token is None:
        special_tokens = read_special_tokens(encoder_files, ("mask_token", "eos_token"))
        usual = (special_tokens.get("mask_token"), "[MASK]", "<mask>", special_tokens.get("eos_token"))
        token = next((candidate for candidate in usual if candidate in ids), None)
    if token is None or token not in ids:
        raise ModelInvalid(
            f"{encoder_files.path / 'tokenizer.json'}: has no token {token or 'for a mask'}, "
            "which queries are filled up with"
        )
    return ids[token]


def _check_expansion(folder: Path, encoder: Encoder, expansion: QueryExpansion | None) -> None:
    """Refuse what would not be computed as in sentence-transformers. Raises UnsupportedArchitecture."""
    if expansion is None:
        return
    if expansion.length > encoder.max_positions:
        raise UnsupportedArchitecture(
            f"{folder}: queries are filled up to {expansion.length} tokens, the encoder takes {encoder.max_positions}"
        )
    for layer in encoder.layers:
        if layer.attention.causal:
            raise UnsupportedArchitecture(f"{folder}: query expansion of a decoder is not supported")
