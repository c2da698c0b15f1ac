"""Writes the pages of ``docs/`` that follow from the code: ``python -m pipelines.reference``."""

from __future__ import annotations

from pathlib import Path

from pipelines import config, storage
from pipelines.engines import REGISTRY, engine

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTICE = "<!-- Written by `python -m pipelines.reference`; edit the code instead. -->\n\n"


def settings_page() -> str:
    """The reference of all settings, as Markdown."""
    lines = [
        NOTICE + "# Settings\n",
        "One YAML file, and `--set KEY=VALUE` on top. A wrong key, type or range is refused "
        "before Spark starts.\n",
        "| key | type | default | what it is |",
        "|---|---|---|---|",
    ]
    for key, kind, default, description in config.fields():
        cells = (f"`{key}`", kind, f"`{default}`" if default else "", description)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def engines_page() -> str:
    """The table of engines, as Markdown."""
    lines = [
        NOTICE + "# Engines\n",
        "Every synchronous engine gives the loss curve of `local`, on any number of workers.\n",
        "| training.engine | training.mode | training.framework | training.feed | needs Spark |",
        "|---|---|---|---|---|",
    ]
    for name in REGISTRY:
        found = engine(name)
        cells = (
            f"`{name}`",
            ", ".join(found.modes),
            ", ".join(found.frameworks),
            ", ".join(found.feeds),
            "yes" if found.needs_spark else "no",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


PAGES = {"settings.md": settings_page, "engines.md": engines_page}


def main() -> None:
    """Writes all pages."""
    for name, page in PAGES.items():
        storage.write_text(DOCS / name, page())


if __name__ == "__main__":
    main()
