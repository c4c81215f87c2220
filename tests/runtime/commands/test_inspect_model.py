"""`embedserve inspect`: the table that people read and the JSON that programs read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from embedserve_runtime.commands.cli import main
from embedserve_runtime.commands.inspect_model import format_size
from tests.runtime.model.identity_folders import encoder
from tests.runtime.model.test_card import edit
from tests.support.models import copy_of_minilm, small_minilm
from tests.support.onnx_files import table_graph, unknown_family
from tests.support.static_models import Saved

MINILM = """\
Model          {folder} (local), {disk} on disk
Kind           bert encoder, 6 layers of 384
Task           embed
Outputs        dense, hidden
Dimensions     128, cut from 384
Vectors        mean pooling, normalized
Max length     256 tokens
Prompts        query: 'query: '
               passage (default): 'passage: '
Engines        onnx: yes
               torch: yes
Memory         454.0 MB at the highest; limit of a container: 477Mi
               process       146.8 MB  measured: interpreter, libraries and HTTP server
               weights        90.3 MB  the model's parameters in the precision in which they run, float32
               tokenizer      15.3 MB  measured for each token of a vocabulary, by kind
               batches        75.8 MB  2 at once of 1024 tokens, by the widest layer
               requests      125.8 MB  bodies of 32 MiB, results of 4096 inputs, measured for each
Vector space   {space}
"""
STATIC = """\
Model          {folder} (local), {disk} on disk
Kind           static embeddings (model2vec), 16 tokens
Task           embed
Outputs        dense, hidden
Dimensions     7
Vectors        mean pooling, normalized
Max length     512 tokens
Prompts        none
Engines        static: yes
               onnx: a static embedding model has no layers to run
               torch: a static embedding model has no layers to run
Memory         248.9 MB at the highest; limit of a container: 262Mi
               process       146.8 MB  measured: interpreter, libraries and HTTP server
               weights      448 bytes  the model's parameters in the precision in which they run, as stored
               tokenizer       8.0 kB  measured for each token of a vocabulary, by kind
               batches        28.7 kB  1 at once of 1024 tokens, by the widest layer
               requests      102.0 MB  bodies of 32 MiB, results of 4096 inputs, measured for each
Vector space   {space}
"""
ONNX_FILE = """\
Model          {folder} (local), {disk} on disk
Kind           ONNX file onnx/model.onnx (novel)
Task           embed
Outputs        dense
Dimensions     4
Vectors        made by the ONNX file, not normalized
Max length     512 tokens
Prompts        none
Engines        onnx: yes
               torch: it does not run ONNX files
Memory         at least 248.9 MB at the highest; limit of a container: 262Mi
               process       146.8 MB  measured: interpreter, libraries and HTTP server
               weights      {file:>9}  the model's parameters in the precision in which they run, as stored
               tokenizer     600.0 kB  measured for each token of a vocabulary, by kind
               loading      {file:>9}  what loading takes beyond the batches
               requests      101.4 MB  bodies of 32 MiB, results of 4096 inputs, measured for each
               what a batch takes is the file's own and not known
Vector space   {space}
"""


def _minilm(folder: Path) -> None:
    copy_of_minilm(folder)
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "passage"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))


def _static(folder: Path) -> None:
    Saved().save(folder)


def _onnx_file(folder: Path) -> None:
    table_graph(unknown_family(folder) / "onnx" / "model.onnx", {"sentence_embedding": ["b", 4]})


@pytest.mark.parametrize(
    ("make", "flags", "want"),
    [
        pytest.param(_minilm, ["--dimensions", "128"], MINILM, id="a family"),
        pytest.param(_static, [], STATIC, id="a static model"),
        pytest.param(_onnx_file, [], ONNX_FILE, id="an ONNX file"),
    ],
)
def test_the_table_says_what_the_model_is_and_needs(
    make: Callable[[Path], None],
    flags: list[str],
    want: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "model"
    make(folder)
    assert main(["inspect", str(folder), "--max-batch-tokens", "1024", *flags]) == 0
    printed = capsys.readouterr().out
    space = re.search(r"vs2-[0-9a-f]{20}", printed)
    assert space is not None
    disk = format_size(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
    file = format_size(sum(path.stat().st_size for path in folder.rglob("*.onnx")))
    assert printed == want.format(folder=folder, space=space[0], disk=disk, file=file)


def test_the_json_says_the_same(minilm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", "--model", str(minilm)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["family"], facts["layers"], facts["dimensions"]) == (
        "family",
        "bert",
        6,
        384,
    )
    assert (facts["task"], facts["outputs"], facts["pooling"]) == ("embed", ["dense", "hidden"], "mean")
    assert facts["engines"] == {"onnx": "yes", "torch": "yes"}
    assert facts["vectorSpace"] == "vs2-d4f43f9e189b33de563b"
    # The parameters of the file without the pooler's, which is not run.
    assert facts["memory"]["weightsBytes"] == 22_565_376 * 4


def test_a_scaling_of_positions_that_is_not_done_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder("nomic v2, two of five experts")(tmp_path)
    folder = tmp_path / "saved"
    edit(folder / "config.json", rotary_scaling_factor=2.0, max_trained_positions=20)
    assert main(["inspect", str(folder)]) == 0
    notice = "config.json: rotary_scaling_factor: texts end at max_trained_positions, 20 tokens"
    assert re.search(rf"^Ignored +{notice}$", capsys.readouterr().out, re.MULTILINE)


def test_what_the_tokenizers_class_decides_against_tokenizer_json_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_minilm(tmp_path / "model")
    assert main(["inspect", str(folder)]) == 0
    before = capsys.readouterr().out
    assert "Tokenizer " not in before
    edit(folder / "tokenizer_config.json", do_lower_case=False)
    assert main(["inspect", str(folder)]) == 0
    after = capsys.readouterr().out
    notice = r"do_lower_case = false \(tokenizer_config.json\), against lowercase = true of tokenizer.json"
    assert re.search(rf"^Tokenizer +{notice}$", after, re.MULTILINE)
    assert re.findall("vs2-.*", after) != re.findall("vs2-.*", before)


@pytest.mark.parametrize(("precision", "share"), [("float32", 1), ("bfloat16", 2)])
def test_memory_is_that_of_the_precision_in_which_the_model_runs(
    precision: str, share: int, minilm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(minilm), "--json", "--engine", "torch", "--precision", precision]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["weightsBytes"] == 22_565_376 * 4 // share


def test_a_model_that_cannot_be_served_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(unknown_family(tmp_path))]) == 1
    assert "UnsupportedArchitecture" in (error := capsys.readouterr().err)
    assert "model_type 'novel'" in error


@pytest.mark.parametrize(
    ("count", "want"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (2_560_000_000, "2.6 GB")]
)
def test_sizes_are_written_in_the_largest_unit_that_fits(count: int, want: str) -> None:
    assert format_size(count) == want
