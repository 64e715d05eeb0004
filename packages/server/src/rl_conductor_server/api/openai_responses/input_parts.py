"""The parts of a message in a Responses request: texts, refusals, images and documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from rl_conductor.types import ContentPart, ImageDetail, TextPart
from rl_conductor_server.api.content import FILES_BY_CONTENT, file_part, image_part
from rl_conductor_server.request_validation.markers import unsupported
from rl_conductor_server.request_validation.parsing import Body


class InputText(Body):
    """A text part of the input."""

    type: Literal["input_text"]
    text: str

    def part(self) -> ContentPart:
        return TextPart(text=self.text)


class OutputText(Body):
    """A text part of an earlier response; extra fields of any server are ignored."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["output_text"]
    text: str

    def part(self) -> ContentPart:
        return TextPart(text=self.text)


class Refusal(Body):
    """A refusal in an earlier response."""

    type: Literal["refusal"]
    refusal: str

    def part(self) -> ContentPart:
        return TextPart(text=self.refusal)


class InputImage(Body):
    """An image part of the input."""

    type: Literal["input_image"]
    file_id: Annotated[Any, unsupported(FILES_BY_CONTENT)] = None
    image_url: str
    detail: ImageDetail | None = None

    def part(self) -> ContentPart:
        return image_part(self.image_url, detail=self.detail, param="image_url")


class InputFile(Body):
    """A document part of the input."""

    type: Literal["input_file"]
    file_id: Annotated[Any, unsupported(FILES_BY_CONTENT)] = None
    file_url: Annotated[Any, unsupported(FILES_BY_CONTENT)] = None
    file_data: str
    filename: str = "document.pdf"

    def part(self) -> ContentPart:
        return file_part(self.file_data, name=self.filename, param="file_data")


InputPart = Annotated[InputText | InputImage | InputFile, Field(discriminator="type")]
Part = Annotated[InputText | OutputText | Refusal | InputImage | InputFile, Field(discriminator="type")]
