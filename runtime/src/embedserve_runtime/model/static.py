"""Static embedding models: a table of token vectors, and the mean of a text's rows. No encoder.

Two layouts. Model2Vec: the tensor `embeddings`, perhaps with `mapping` (a row for each token, where rows are shared)
and `weights` (a factor for each token). sentence-transformers: the module StaticEmbedding with `embedding.weight`,
in the root folder or one of its own. The tensor's name decides, since Model2Vec writes a modules.json too: a table
that Model2Vec saved is used by Model2Vec's rules, however it is wrapped.

Source of the rules: `StaticModel` of model2vec 0.10, `StaticEmbedding` of sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from embedserve_runtime.errors import ModelFileMissing, ModelInvalid
from embedserve_runtime.model.architecture import Embeddings, Encoder
from embedserve_runtime.model.checkpoint import SINGLE_FILE, Checkpoint
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.hf_files.model2vec import Model2VecConfig
from embedserve_runtime.model.hf_files.tokenizers import TOKENIZER_FILE, TokenizerJson
from embedserve_runtime.model.parameter_names import ParameterNames
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.model.vocabulary import parse_tokenizer

MODEL2VEC, SENTENCE_TRANSFORMERS = "embeddings", "embedding.weight"
EMBEDDINGS = "embeddings"
"""The part of a table that has its rows."""
# Where nothing bounds a text, as in sentence-transformers: a batch must hold the longest input.
DEFAULT_MAX_LENGTH = 32_768

Tensor = NDArray[Any]


@dataclass(frozen=True, slots=True)
class StaticTable:
    """The layout of a static model's table of token vectors.

    tensor: the name of the table among the tensors.
    vocabulary: token ids from 0 on; dimensions: length of a row.
    max_length: tokens that are read. token_characters: with `max_length` tokens no more characters are read than
    that many times this; None: all are.
    unknown: id of the token that takes no part; None where every token does.
    normalize: None where only modules.json can say it.
    """

    tensor: str
    vocabulary: int
    dimensions: int
    max_length: int
    token_characters: int | None
    unknown: int | None
    normalize: bool | None

    @property
    def family(self) -> str:
        return "model2vec" if self.tensor == MODEL2VEC else "static-embedding"

    @property
    def encoder(self) -> Encoder:
        """The sizes, as an encoder without layers."""
        return describe_table_encoder(self.family, self.dimensions, self.vocabulary, self.max_length)


def describe_table_encoder(family: str, dimensions: int, vocabulary: int, max_length: int) -> Encoder:
    """Describe the sizes of a table, as an encoder."""
    return Encoder(
        family=family,
        hidden_size=dimensions,
        max_positions=max(max_length, DEFAULT_MAX_LENGTH),
        embeddings=Embeddings(vocabulary=vocabulary, positions=None, token_types=0, norm=None),
        layers=(),
        final_norm=None,
        parameter_names=ParameterNames((), {}),
    )


def read_static(files: ModelFiles, tensors: ModelTensors, module: str | None) -> StaticTable | None:
    """Read the table of a folder; None where there is none.

    module: folder of the StaticEmbedding module.

    Raises ModelInvalid or ModelFileMissing.
    """
    module_files = files.enter_folder(module or "")
    if module is None and SINGLE_FILE not in module_files:
        return None
    checkpoint = tensors.open_checkpoint(module or "")
    tensor = next((name for name in (MODEL2VEC, SENTENCE_TRANSFORMERS) if name in checkpoint.names), None)
    if tensor is None and module is not None:
        raise ModelInvalid(
            f"{module_files.path / SINGLE_FILE} has neither tensor of a static model: "
            f"{MODEL2VEC}, {SENTENCE_TRANSFORMERS}"
        )
    if tensor is None or (module is None and tensor != MODEL2VEC):
        return None
    return _read_table(module_files, tensor, checkpoint)


def _read_table(module_files: ModelFiles, tensor: str, checkpoint: Checkpoint) -> StaticTable:
    tokenizer = load_tokenizer(module_files)
    tokens = tokenizer.get_vocab()
    names = name_table_tensors(checkpoint, tensor)
    shape = checkpoint.shape(tensor)
    vectors = {part: checkpoint.read_tensor(name) for part, name in names.items() if part != EMBEDDINGS}
    vocabulary = len(vectors["mapping"]) if "mapping" in vectors else shape[0] if shape else 0
    _check(module_files, shape, vectors, vocabulary, max(tokens.values(), default=0))
    if tensor == SENTENCE_TRANSFORMERS:
        truncation = module_files.parse(TOKENIZER_FILE, TokenizerJson).truncation
        length, characters, unknown, normalize = truncation and truncation.max_length, None, None, None
    else:
        config = module_files.parse_if_there("config.json", Model2VecConfig, Model2VecConfig())
        length, normalize = config.max_length, config.normalize
        characters = None if length is None else int(np.median([len(token) for token in tokens]))
        unknown = _find_unknown_token(tokenizer, module_files)
    return StaticTable(
        tensor=tensor,
        vocabulary=vocabulary,
        dimensions=shape[1],
        max_length=length or DEFAULT_MAX_LENGTH,
        token_characters=characters,
        unknown=unknown,
        normalize=normalize,
    )


def load_tokenizer(module_files: ModelFiles) -> Tokenizer:
    """Load the tokenizer of the table in `module_files`. Raises ModelFileMissing or ModelInvalid."""
    file = module_files.find(TOKENIZER_FILE)
    if file is None:
        raise ModelFileMissing(
            f"{TOKENIZER_FILE} not found in {module_files.path}, where the table of tokens lies"
        )
    return parse_tokenizer(file)


def name_table_tensors(checkpoint: Checkpoint, name: str) -> Mapping[str, str]:
    """Return the tensors of `embeddings`, and of `weights` and `mapping` where the model has them. name: of the table,
    by `StaticTable.tensor`."""
    parts = {EMBEDDINGS: name}
    if name == MODEL2VEC:
        parts |= {part: part for part in ("mapping", "weights") if part in checkpoint.names}
    return parts


def read_table_tensors(checkpoint: Checkpoint, name: str) -> Mapping[str, Tensor]:
    """Read the tensors that `name_table_tensors` names, as stored. Raises ModelInvalid."""
    return {
        part: checkpoint.read_tensor(tensor) for part, tensor in name_table_tensors(checkpoint, name).items()
    }


def _check(
    module_files: ModelFiles,
    shape: Sequence[int],
    vectors: Mapping[str, Tensor],
    vocabulary: int,
    last_token: int,
) -> None:
    """Raise ModelInvalid where the table, of that shape, and its weights and mapping are not of one model."""
    path = module_files.path / SINGLE_FILE
    if len(shape) != 2:
        raise ModelInvalid(f"{path}: the table has shape {list(shape)}, not two sides")
    if last_token >= vocabulary:
        raise ModelInvalid(
            f"{path} has rows for {vocabulary} tokens, tokenizer.json gives ids up to {last_token}"
        )
    rows, mapping, weights = shape[0], vectors.get("mapping"), vectors.get("weights")
    if mapping is not None and (
        mapping.ndim != 1 or mapping.dtype.kind not in "iu" or mapping.min() < 0 or mapping.max() >= rows
    ):
        raise ModelInvalid(f"{path}: mapping must give each token one of the {rows} rows")
    if weights is not None and weights.shape != (vocabulary,):
        raise ModelInvalid(
            f"{path}: weights has shape {list(weights.shape)}, must be one for each of {vocabulary} tokens"
        )


def _find_unknown_token(tokenizer: Tokenizer, module_files: ModelFiles) -> int | None:
    """Find the unknown token: Unigram names its id, the others the token."""
    token = getattr(tokenizer.model, "unk_token", None)
    if token is not None:
        token_id: int | None = tokenizer.token_to_id(token)
        return token_id
    return module_files.parse(TOKENIZER_FILE, TokenizerJson).model.unk_id
