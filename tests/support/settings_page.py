"""Writes docs/settings.md: `python -m tests.support.settings_page`. A test finds it stale."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from embedserve_runtime.commands.options import GROUP_TITLES
from embedserve_runtime.config import Setting, list_runtime_settings
from embedserve_runtime.config.catalog import SettingType

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
_HEAD = """\
# Settings of the runtime

<!-- Written by `python -m tests.support.settings_page`; the texts are in runtime/src/embedserve_runtime/config. -->

Each setting has a key in the YAML file of `--config`, an environment variable and a flag; secrets have no flag, since
the list of processes shows flags to all. A flag wins over the variable, and the variable over the file.

```yaml
model:
  source: sentence-transformers/all-MiniLM-L6-v2
  pooling: mean
server:
  port: 8080
```

```console
$ export EMBEDSERVE_MODEL__POOLING=mean
$ embedserve serve sentence-transformers/all-MiniLM-L6-v2 --port 8080
```

All flags are flags of `serve`, `fetch`, `convert`, `inspect` and `bench` alike ([the command line](command-line.md)).
A switch is set by its flag and unset by the flag with `no-` in front (`--no-auto-truncate`). The flag of a list is
repeated (`--outputs dense --outputs sparse`); an environment variable has lists and mappings as JSON
(`'["dense", "sparse"]'`).

A setting that is wrong ends the start with exit code 78, and the message names the key and the flag or the variable
that it comes from.
"""
_NAMES = {
    "boolean": "switch",
    "integer": "integer",
    "number": "number",
    "path": "path",
    "text": "text",
    "pairs": "texts by name (NAME=TEXT)",
    "secret": "secret",
}


def render_page() -> str:
    """Return the page with a table for each group of settings."""
    return _HEAD + "".join(
        line for group, title in GROUP_TITLES.items() for line in _render_group(group, title)
    )


def _render_group(group: str, title: str) -> Iterator[str]:
    yield f"\n## {title}\n\n"
    yield "| key | flag | environment | value | default |\n|---|---|---|---|---|\n"
    settings = [setting for setting in list_runtime_settings() if setting.group == group]
    yield from map(_render_row, settings)
    yield "\n"
    yield from (f"- `{setting.key}`: {setting.description}\n" for setting in settings)


def _render_row(setting: Setting) -> str:
    flag = "–" if setting.flag is None else f"`{setting.flag}`"
    default = f"`{setting.default}`" if setting.default else "–"
    return (
        f"| `{setting.key}` | {flag} | `{setting.variable}` | {_describe_type(setting.type)} | {default} |\n"
    )


def _describe_type(setting_type: SettingType) -> str:
    words = setting_type.alternatives
    if setting_type.kind == "choice":
        described = ", ".join(f"`{word}`" for word in setting_type.choices)
    else:
        described = _NAMES[setting_type.kind]
    listed = f"list of {described}" if setting_type.is_list else described
    return ", or ".join([listed, *(f"`{word}`" for word in words)])


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
