"""Makes Click options of the settings, and settings of the options that are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from embedserve_runtime.commands.completion import complete_model
from embedserve_runtime.commands.param_types import NamedText, WordOr
from embedserve_runtime.config import Setting, list_runtime_settings
from embedserve_runtime.config.catalog import SettingPath, SettingType

GROUP_TITLES: Final = {
    "model": "Model",
    "engine": "Engine",
    "server": "Server",
    "batching": "Batching",
    "onnx": "Conversion",
    "telemetry": "Traces",
    "": "Logs",
}
"""The headings of a help by group of settings, in their order."""
_SOURCE: Final[SettingPath] = ("model", "source")
_HELP_ALL: Final = "--help-all"
_TYPES: Final[Mapping[str, click.ParamType[Any]]] = {
    "integer": click.INT,
    "number": click.FLOAT,
    "path": click.Path(path_type=Path),
    "text": click.STRING,
    "pairs": NamedText(),
}


class SettingOption(click.Option):
    """The flag of one setting.

    Bounds are checked by the settings, so that a file, a variable and a flag are refused in the same words; the flag
    knows only whether its text is a number, a path or one of some words. is_common: whether `--help` shows it.
    """

    def __init__(self, setting: Setting, flag: str, *, is_common: bool) -> None:
        self.setting = setting
        self.is_common = is_common
        is_switch = setting.type.kind == "boolean"
        super().__init__(
            [f"{flag}/--no-{flag.removeprefix('--')}" if is_switch else flag, "__".join(setting.path)],
            type=None if is_switch else _build_type(setting.type),
            default=None,
            multiple=setting.type.is_list or setting.type.kind == "pairs",
            help=setting.description,
        )

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        """Return the environment variable and the default, which is the setting's and not the flag's."""
        extra: click.types.OptionHelpExtra = {"envvars": (self.setting.variable,)}
        if self.setting.default:
            extra["default"] = self.setting.default
        return extra

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the row of the help: with the whole description, or with its first sentence."""
        record = super().get_help_record(ctx)
        if record is None or _shows_all(ctx):
            return record
        description = self.setting.description
        return record[0], record[1].replace(description, _take_first_sentence(description), 1)

    def read_value(self, value: Any, ctx: click.Context) -> Any:
        """Return what the setting gets of the parsed value; None where the flag is not given."""
        if not self.multiple:
            return value
        if not value:
            return None
        if self.setting.type.kind == "pairs":
            return self._build_mapping(value, ctx)
        return value[0] if len(value) == 1 and value[0] in self.setting.type.alternatives else value

    def _build_mapping(self, pairs: Sequence[tuple[str, str]], ctx: click.Context) -> Mapping[str, str]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            raise click.UsageError(f"{self.opts[0]} gives one name two texts.", ctx)
        return mapping


class OnceOption(click.Option):
    """An option that may be given once: of several values Click takes the last without a word."""

    def __init__(self, declarations: Sequence[str], **attributes: Any) -> None:
        super().__init__(declarations, multiple=True, **attributes)

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value, None where the option is not given."""
        values = super().process_value(ctx, value)
        if len(values) > 1:
            raise click.UsageError(f"{self.opts[0]} is given {len(values)} times; give it once.", ctx)
        return values[0] if values else None


def _build_type(setting_type: SettingType) -> click.ParamType[Any]:
    words = setting_type.alternatives
    if setting_type.kind == "choice":
        return click.Choice((*words, *setting_type.choices))
    return WordOr(_TYPES[setting_type.kind], words) if words else _TYPES[setting_type.kind]


class SettingsCommand(click.Command):
    """A command that takes a model and every setting as a flag.

    Its help shows the flags that people use; all of them are in `--help-all`, docs/settings.md and completions.
    run: is called with the settings by group and name, and the options of the command itself. common: the settings
    that `--help` shows.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Mapping[str, Any], Mapping[str, Any]], Any],
        summary: str,
        common: Iterable[SettingPath],
        own: Sequence[click.Parameter] = (),
    ) -> None:
        shown = frozenset(common)
        self._run = run
        self.setting_options = [
            SettingOption(setting, setting.flag, is_common=setting.path in shown)
            for setting in list_runtime_settings()
            if setting.flag is not None
        ]
        super().__init__(
            name,
            help=f"{summary}\n\nMODEL is a folder or a repository of the hub (owner/name), as --model.",
            short_help=summary,
            epilog=f"All flags: embedserve {name} --help-all. Flags win over environment variables, and those over "
            "the file of --config.",
            params=[
                click.Argument(["model"], required=False, shell_complete=complete_model),
                *self.setting_options,
                *own,
                _build_help_all(),
            ],
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags under the titles of their groups, the command's own first."""
        options = (param for param in self.get_params(ctx) if isinstance(param, click.Option))
        others = [option for option in options if not isinstance(option, SettingOption)]
        _write_section(ctx, formatter, "Options", others)
        for group, title in GROUP_TITLES.items():
            shown = [
                option
                for option in self.setting_options
                if option.setting.group == group and (_shows_all(ctx) or option.is_common)
            ]
            _write_section(ctx, formatter, title, shown)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a flag or a value, with one sentence about each."""
        items = super().shell_complete(ctx, incomplete)
        for item in items:
            item.help = item.help and _take_first_sentence(item.help)
        return items

    def invoke(self, ctx: click.Context) -> Any:
        return self._run(self._take_settings(ctx), ctx.params)

    def _take_settings(self, ctx: click.Context) -> dict[str, Any]:
        """Take the settings out of the parameters. Raises UsageError where two models are named."""
        settings: dict[str, Any] = {}
        given = ctx.params
        positional = given.pop("model")
        for option in self.setting_options:
            value = option.read_value(given.pop("__".join(option.setting.path)), ctx)
            if option.setting.path == _SOURCE:
                value = _choose_source(positional, value, ctx)
            if value is not None:
                *groups, name = option.setting.path
                target = settings
                for group in groups:
                    target = target.setdefault(group, {})
                target[name] = value
        return settings


def _take_first_sentence(text: str) -> str:
    first, end, _ = text.partition(". ")
    return first + end.rstrip()


def _choose_source(positional: str | None, flag: str | None, ctx: click.Context) -> str | None:
    if positional is not None and flag is not None and positional != flag:
        raise click.UsageError(f"Two models are named, {positional} and --model {flag}; name one.", ctx)
    return positional if flag is None else flag


def _write_section(
    ctx: click.Context, formatter: click.HelpFormatter, title: str, params: Iterable[click.Parameter]
) -> None:
    records = [record for param in params if (record := param.get_help_record(ctx)) is not None]
    if records:
        with formatter.section(title):
            formatter.write_dl(records)


def _build_help_all() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[_HELP_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        [_HELP_ALL],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show every flag and exit.",
    )


def _shows_all(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(_HELP_ALL))
