"""Sphinx: the pages of this folder, and the docstrings of the public interface. `make docs` builds the site."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

project = "deconv_ext"
author = "the deconv_ext authors"
copyright = "the deconv_ext authors"
release = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"deconv_ext {release}"
html_copy_source = False
html_show_sphinx = False
