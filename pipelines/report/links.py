"""Links from a page to what lies beside it, which still lead there when all of it is moved."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pipelines.files.locations import Location
from pipelines.settings.redaction import without_password


@dataclass(frozen=True)
class Link:
    """What a page leads to.

    Attributes:
        name: For people.
        place: The path, or the address of a store.
        href: Relative to the page; None where a browser could not follow it.
    """

    name: str
    place: str
    href: str | None


def link(name: str, target: Location, page: Location) -> Link:
    """The link from a page to a file or a folder; to a store none leads, so it is named.

    Args:
        name: For people.
        target: The file or folder.
        page: The file that the link is in.
    """
    if not isinstance(target, Path) or not isinstance(page, Path):
        return Link(name, without_password(str(target)), None)
    path = Path(os.path.relpath(target.absolute(), page.absolute().parent)).as_posix()
    # A first part with a colon would be taken for the scheme of an address.
    first = "" if path.startswith("../") else "./"
    end = "/" if target.is_dir() else ""
    return Link(name, path, f"{first}{quote(path)}{end}")
