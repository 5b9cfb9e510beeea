"""Options of a command in named sections of its help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class SectionOption(click.Option):
    """An option that stands under a heading of the help."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Defaults are worth a word of the help, the obvious ranges of numbers are not."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class SectionCommand(click.Command):
    """A command whose help lists its options by section, in the order in which they were declared."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a definition list for each section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record:
                sections.setdefault(getattr(parameter, "section", "Other"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def complete_codes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes of rules for the shell to complete."""
    from click.shell_completion import CompletionItem

    from trace_doctor.fixes.pages import pages

    return [
        CompletionItem(page.code, help=page.summary) for page in pages().values() if page.code.startswith(incomplete)
    ]


def complete_devices(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """GPUs for the shell to complete."""
    from click.shell_completion import CompletionItem

    from trace_doctor.hardware.devices import catalogue

    return [CompletionItem(row.id) for row in catalogue() if row.id.startswith(incomplete.lower())]


def complete_conventions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Conventions of counting FLOPs for the shell to complete."""
    from click.shell_completion import CompletionItem

    from trace_doctor.work.conventions import catalogue

    return [
        CompletionItem(row.name, help=row.formula) for row in catalogue() if row.name.startswith(incomplete.lower())
    ]
