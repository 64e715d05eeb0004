"""Renders Markdown of models and strangers as HTML that can neither run anything nor load anything.

The parser escapes all HTML in the text, and an image becomes a link to it. The result is sanitised again, so that a
mistake in the parser is not a hole in the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

MAX_CHARS = 20_000
"""Longer text is shown as it is: parsing it can take seconds if it is hostile."""
TAGS = frozenset(
    "a blockquote br code del em h3 h4 h5 h6 hr li ol p pre s strong table tbody td th thead tr ul".split()  # noqa: SIM905
)
ATTRIBUTES: dict[str, set[str]] = {"a": {"href", "title"}, "ol": {"start"}, "th": {"align"}, "td": {"align"}}
SCHEMES = {"http", "https", "mailto"}
CACHED_TEXTS = 128
"""An open page of a run in progress is rendered again at each change."""
FIRST_LEVEL = 3
"""Headings of the text are below those of the page's sections."""


@lru_cache(CACHED_TEXTS)
def render_markdown(text: str) -> Markup:
    """Returns safe HTML of a text in Markdown; of a very long one, the text itself."""
    if len(text) > MAX_CHARS:
        return Markup("<pre>{}</pre>").format(text)
    html = _parser.render(text)
    clean = nh3.clean(
        html,
        tags=set(TAGS),
        attributes=ATTRIBUTES,
        url_relative="deny",  # a model has no business to link to pages of this site
        url_schemes=SCHEMES,
        link_rel="noopener noreferrer nofollow",
    )
    return Markup(clean)  # noqa: S704  it was sanitised


def _link_to_image(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Renders an image as a link: loading it would tell a stranger that the page is read, and when."""
    image = tokens[index]
    label = renderer.renderInlineAsText(image.children, options, env)
    return f'<a href="{escape(image.attrs["src"])}">[image: {escape(label or "untitled")}]</a>'


def _lower_headings(state: StateCore) -> None:
    """Numbers the levels of headings from `FIRST_LEVEL` on, without gaps."""
    headings = [token for token in state.tokens if token.type in ("heading_open", "heading_close")]
    levels = sorted({token.tag for token in headings})
    for token in headings:
        token.tag = f"h{min(6, FIRST_LEVEL + levels.index(token.tag))}"


def _create_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.disable(["html_block", "html_inline"])
    parser.add_render_rule("image", _link_to_image)
    parser.core.ruler.push("lower_headings", _lower_headings)
    return parser


_parser = _create_parser()
