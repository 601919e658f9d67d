"""What the site needs beyond MkDocs: `mkdocs.yml` names this file."""

import re
import shutil
from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to files outside docs/ work on a code host; on the site only their text is left."""
    return re.sub(r"(?<!!)\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """The first page is also index.html, where browsers and servers look for it."""
    site = Path(config["site_dir"])
    shutil.copyfile(site / "start.html", site / "index.html")
