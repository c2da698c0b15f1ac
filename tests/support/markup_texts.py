"""Texts that may be taken for markup, for property tests of what is written around them."""

from __future__ import annotations

from hypothesis import strategies as st

_SIGNS = "|`*_\\<>&#[]()!~-+=:'\"{}\n\r\t0.$@ a\u2028\x85\x00"
"""Of Markdown, HTML, YAML and Python."""

TEXTS = st.text(st.one_of(st.sampled_from(_SIGNS), st.characters()), max_size=40)
