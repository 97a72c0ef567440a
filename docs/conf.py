"""Settings of the site: `make site`. What it generates is in `tools/site_pages.py`."""

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tools"))

import site_pages

from ehrsequencing import __version__

# pages that were merged into others; their addresses lead there
MOVED = {
    "guide": "tasks",
    "which-model": "models",
    "explorer": "report",
    "explanations": "report",
    "nightly": "production",
    "performance": "scale",
    "league": "benchmarks",
}
REPOSITORY = ""  # its address, once it is known: packaging/RELEASING.md, step 1
project, author, release = "ehrsequencing", "The ehrsequencing authors", __version__
project_copyright = "2026, the ehrsequencing authors"
extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
]
# these stay in the repository
exclude_patterns = ["lab-notes", "proposals", "decisions.md", "written-by-hand.md"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # `site_pages.py` has run them
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # nothing from elsewhere
suppress_warnings = ["mystnb.unknown_mime_type", "myst.header"]

default_role = "code"
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
# scikit-learn adds these to an estimator
autodoc_default_options = {"exclude-members": "set_fit_request, set_score_request"}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
# the inventories are written by hand, so that no build reads the network
intersphinx_mapping = {
    name: (address, str(HERE / "_generated" / f"{name}.inv"))
    for name, address in site_pages.INVENTORIES.items()
}

html_theme = "pydata_sphinx_theme"
html_title = "ehrsequencing"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path = ["_templates"]
html_context = {"default_mode": "auto"}  # light or dark, as the reader's computer is set
html_show_sourcelink = False
html_theme_options = {
    "header_links_before_dropdown": 8,
    "icon_links": [{"name": "Repository", "url": REPOSITORY, "icon": "fa-solid fa-code-branch"}]
    if REPOSITORY
    else [],
    "navbar_align": "left",
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars: dict[str, list[str]] = {"index": [], "faq": [], "project": []}


def name_triangles(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Name the triangles that fold the sidebar's parts, for screen readers."""
    made = context.get("generate_toctree_html")
    if made is not None:
        context["generate_toctree_html"] = lambda *kind, **options: str(
            made(*kind, **options)
        ).replace("<summary>", '<summary aria-label="fold or unfold">')


def write_moved(app: Sphinx, error: Exception | None) -> None:
    """A page at each old address that leads to the new one, section and all."""
    for old, new in MOVED.items():
        page = (
            f'<meta http-equiv="refresh" content="1; url={new}.html"><a href="{new}.html">{new}</a>'
        )
        script = f'<script>location.replace("{new}.html" + location.hash)</script>'
        Path(app.outdir, f"{old}.html").write_text(f"<!doctype html>{script}{page}", "utf-8")


def setup(app: Sphinx) -> None:
    """Write what is generated, before Sphinx looks for pages."""
    site_pages.everything(HERE)
    app.connect("autodoc-process-docstring", site_pages.literal_blocks)
    app.connect("html-page-context", name_triangles, priority=900)  # after the theme
    app.connect("source-read", site_pages.link_to_repository)
    app.connect("build-finished", write_moved)
    app.connect("include-read", site_pages.name_files_of_the_repository)
