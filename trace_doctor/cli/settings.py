"""Options that the config file and the environment may give as well: command line > TRACE_DOCTOR_* > file > default.

The order is click's own: what a file says becomes the command's `default_map`. Values of a file are read as on the command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from trace_doctor import config
from trace_doctor.cli.options import SectionOption
from trace_doctor.config import Config
from trace_doctor.errors import UsageError
from trace_doctor.options import Limits

STRENGTH = (
    ParameterSource.COMMANDLINE,
    ParameterSource.ENVIRONMENT,
    ParameterSource.DEFAULT_MAP,
    ParameterSource.DEFAULT,
)
REFERENCE = "docs/reference/configuration.md lists the keys, trace-doctor analyze --help what they take"


class Setting(SectionOption):
    """An option that a config file may hold in `table` ("": outside of any) under `key`, and that has a variable in the environment."""

    def __init__(self, *args: Any, table: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table
        self.key = max(self.opts, key=len).removeprefix("--")
        self.envvar = f"TRACE_DOCTOR_{self.key.upper().replace('-', '_')}"


def load(ctx: click.Context, _: click.Parameter, path: Path | None) -> Config:
    """Callback of --config: the file's values become the defaults of the command's settings."""
    if ctx.resilient_parsing or ctx.params.get("no_config"):
        return Config()
    path = path or config.find(Path.cwd())
    if path is None:
        return Config()
    settings = [one for one in ctx.command.params if isinstance(one, Setting)]
    found = config.read(path, known(settings))
    ctx.default_map = {str(one.name): _value(ctx, one, found) for one in settings if one.key in found.table(one.table)}
    return found


def known(settings: Iterable[Setting]) -> dict[str, set[str]]:
    """The keys that a config file may have, by table."""
    limits = {field.replace("_", "-") for field in Limits.__struct_fields__}
    tables: dict[str, set[str]] = {"": set(), "limits": limits, "waivers": {"gate", "reason", "expires"}}
    for one in settings:
        tables.setdefault(one.table, set()).add(one.key)
    return tables


def _value(ctx: click.Context, setting: Setting, found: Config) -> Any:
    """The value of a setting in the file; UsageError where it is none."""
    value = found.table(setting.table)[setting.key]
    where = found.where(*filter(None, (setting.table, setting.key)))
    if isinstance(value, list) != setting.multiple:
        msg = f"{setting.key} takes {'a list' if setting.multiple else 'one value'}"
        raise UsageError(msg, where=where, hint=REFERENCE)
    if isinstance(setting.type, click.Path) and found.path:
        if not isinstance(value, str):
            msg = f"{setting.key} takes the path of a file, as a text"
            raise UsageError(msg, where=where, hint=REFERENCE)
        value = found.path.parent / value
    try:
        return setting.type_cast_value(ctx, [str(one) for one in value] if setting.multiple else str(value))
    except click.BadParameter as error:
        msg = f"{setting.key}: {error.message}"
        raise UsageError(msg, where=where, hint=REFERENCE) from None


def said(ctx: click.Context, name: str) -> str:
    """Where the value of an option comes from, as messages name it: its flag, its variable, or the line of the file."""
    setting = next(one for one in ctx.command.params if one.name == name)
    source = ctx.get_parameter_source(name)
    if isinstance(setting, Setting) and source == ParameterSource.ENVIRONMENT:
        return str(setting.envvar)
    if isinstance(setting, Setting) and source == ParameterSource.DEFAULT_MAP:
        file: Config = ctx.params["config"]
        return f"{setting.key} of {file.where(*filter(None, (setting.table, setting.key)))}"
    return max(setting.opts, key=len)


def weaker(ctx: click.Context, one: str, other: str) -> str | None:
    """Which of two options that exclude each other gives way; null where both come from the same place."""
    ranks = [STRENGTH.index(ctx.get_parameter_source(name) or ParameterSource.DEFAULT) for name in (one, other)]
    return None if ranks[0] == ranks[1] else (one, other)[ranks.index(max(ranks))]
