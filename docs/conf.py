"""Settings of the documentation site, which `make docs` builds."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import reference  # noqa: E402
from sphinx.ext.autodoc.mock import MockFinder  # noqa: E402

import hvdlite  # noqa: E402

reference.write(HERE / "reference")
# autodoc_mock_imports provides frameworks only while a module is imported, but hvdlite.torch
# imports names later.
sys.meta_path.insert(0, MockFinder([*reference.FRAMEWORKS, "jax"]))

project = "hvdlite"
author = "The hvdlite authors"
copyright = author
release = hvdlite.__version__
html_title = f"hvdlite {release}"
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["requirements.txt"]
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["tables.css"]

myst_heading_anchors = 3  # makes links to #headings work as on GitHub
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

# A docstring's cross-reference without a target is an error. Types and exceptions need no target.
nitpicky = True
nitpick_ignore_regex = [("py:(class|data|obj)", ".*"), ("py:exc", ".*Error")]
autodoc_preserve_defaults = True  # shows process_set=global_process_set instead of its repr
autodoc_member_order = "bysource"
autodoc_typehints = "none"

# Pages of the repository that are also pages of the site, with links adapted.
ROOT_PAGES = {"index": "README.md", "contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}


def take_from_root(_app, page: str, source: list) -> None:
    source[0] = source[0].replace("](../README.md", "](index.md")
    if page not in ROOT_PAGES:
        return
    text = (HERE.parent / ROOT_PAGES[page]).read_text(encoding="utf-8")
    for name, file in ROOT_PAGES.items():
        text = text.replace(f"]({file}", f"]({name}.md")
    text = re.sub(r"\]\((examples/|LICENSE)", r"](../\1", text.replace("](docs/", "]("))
    source[0] = f"{text}\n{source[0]}"


def skip_neutral_names(_app, what: str, name: str, value, _skip, _options):
    """Skip, on a framework's page, each name that is also a name of ``hvdlite``.

    Another page documents the names of ``hvdlite``.
    """
    return True if what == "module" and getattr(hvdlite, name, None) is value else None


def setup(app) -> None:
    app.connect("autodoc-skip-member", skip_neutral_names)
    app.connect("source-read", take_from_root)
