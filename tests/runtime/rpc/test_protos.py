"""The committed messages are what `make protos` writes of the files under proto/."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from grpc_tools import protoc

from embedserve_runtime.rpc import generated

ROOT = Path(__file__).resolve().parents[3]
COMMITTED = Path(generated.__file__).parent
BUNDLED = str(files("grpc_tools") / "_proto")


@pytest.mark.parametrize("name", ["tei", "embedserve"])
def test_generated_files_are_up_to_date(name: str, tmp_path: Path) -> None:
    source = ROOT / "proto" / name / "v1"
    code = protoc.main(
        [
            "protoc",
            f"-I{source}",
            f"-I{BUNDLED}",
            f"--python_out={tmp_path}",
            f"--pyi_out={tmp_path}",
            f"{name}.proto",
        ]
    )
    assert code == 0
    for file in tmp_path.iterdir():
        assert (COMMITTED / file.name).read_bytes() == file.read_bytes(), "run `make protos`"
    assert len(list(tmp_path.iterdir())) == 2
