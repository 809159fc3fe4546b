"""The site: ``make docs`` builds it, and no warning is allowed. What the code knows is computed by ``computed.py``."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for `computed`

project = "kvlatch"
author = "The kvlatch authors"
release = version = installed("kvlatch")

extensions = ["myst_parser", "sphinx.ext.autodoc", "computed"]
exclude_patterns = ["_build", "pip.md"]

myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # a page may begin its sections at any depth

html_theme = "furo"
html_title = "kvlatch"
html_show_sourcelink = False
html_show_copyright = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
