"""config.json of a static model that Model2Vec has saved."""

from __future__ import annotations

from pydantic import PositiveInt

from embedserve_runtime.model.files import FileModel


class Model2VecConfig(FileModel):
    """Keys of config.json of a Model2Vec model.

    max_length: the tokens of a text that are read, by Model2Vec's own default where the file does not say it.
    """

    normalize: bool | None = None
    max_length: PositiveInt | None = 512
