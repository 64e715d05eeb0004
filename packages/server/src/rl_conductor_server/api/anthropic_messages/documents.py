"""Content blocks with documents and search results, which become text where they have any. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from rl_conductor.types import ContentPart, ImagePart, TextPart
from rl_conductor.types.messages import labelled_text
from rl_conductor_server.api.content import document_part, image_part
from rl_conductor_server.request_validation.markers import unsupported
from rl_conductor_server.request_validation.parsing import Body

DOCUMENT = "document"
REFUSED_SOURCE = "is not supported for documents; send the content itself, as a source of type 'base64' or 'text'"


class Block(Body):
    """Base of content blocks; `cache_control` is ignored."""

    cache_control: dict[str, Any] | None = None


class Text(Block):
    """A text block; extra fields of an earlier response are ignored."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str

    def parts(self) -> Iterator[ContentPart]:
        yield TextPart(text=self.text)


class Base64Source(Body):
    """Content encoded in base64."""

    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(Body):
    """Content at a URL."""

    type: Literal["url"]
    url: str


class Image(Block):
    """A content block with an image."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]

    def parts(self) -> Iterator[ContentPart]:
        if isinstance(self.source, UrlSource):
            yield image_part(self.source.url, param="url")
        else:
            yield ImagePart(media_type=self.source.media_type, data=self.source.data)


class TextSource(Body):
    """The text of a document."""

    type: Literal["text"]
    media_type: str = "text/plain"
    data: str


class ContentSource(Body):
    """A document in blocks."""

    type: Literal["content"]
    content: str | tuple[Annotated[Text | Image, Field(discriminator="type")], ...]


class RefusedSource(Body):
    """A document that would have to be fetched from elsewhere."""

    model_config = ConfigDict(extra="ignore")

    type: Annotated[Literal["url", "file"], unsupported(REFUSED_SOURCE)]


Source = Annotated[Base64Source | TextSource | ContentSource | RefusedSource, Field(discriminator="type")]


class Document(Block):
    """A content block with a document."""

    type: Literal["document"]
    source: Source
    title: str | None = None
    context: str | None = None

    def parts(self) -> Iterator[ContentPart]:
        source = self.source
        if isinstance(source, Base64Source):
            if self.context:
                of_title = f" {self.title}" if self.title else ""
                yield TextPart(text=f"[Context of the document{of_title}: {self.context}]\n")
            name = self.title or "document.pdf"
            yield document_part(source.media_type, source.data, name=name, param="source.data")
        elif isinstance(source, TextSource):
            yield labelled_text(DOCUMENT, source.data, self.title, Context=self.context)
        elif isinstance(source, ContentSource):
            yield from self._content(source)

    def _content(self, source: ContentSource) -> Iterator[ContentPart]:
        blocks = (Text(type="text", text=source.content),) if isinstance(source.content, str) else source.content
        texts = (block.text for block in blocks if isinstance(block, Text))
        yield labelled_text(DOCUMENT, "\n".join(texts), self.title, Context=self.context)
        for block in blocks:
            if isinstance(block, Image):
                yield from block.parts()


class SearchResult(Block):
    """A content block with a result of a search that the client has made."""

    type: Literal["search_result"]
    source: str
    title: str
    content: tuple[Text, ...]

    def parts(self) -> Iterator[ContentPart]:
        text = "\n".join(block.text for block in self.content)
        yield labelled_text("search result", text, self.title, Source=self.source)
