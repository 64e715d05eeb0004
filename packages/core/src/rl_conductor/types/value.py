"""The base class of all serialised values, and the types of their text and money fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rl_conductor._internal.validation import explained
from rl_conductor.errors import ConfigError


class Value(BaseModel):
    """Base class of frozen values that are serialised: to HTTP, files or traces."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def or_default(cls, value: object, default: Self) -> Self:
        """Returns `value` if it is an instance of this class, and `default` if it is `None`.

        Raises:
            ConfigError: it is something else, such as a dictionary with the names of the fields, or an empty text.
        """
        if value is None:
            return default
        if isinstance(value, cls):
            return value
        name = cls.__name__
        arguments = (f"**{value!r}" if value else "") if isinstance(value, dict) else "..."
        raise ConfigError(f"{value!r} is not an instance of {name}; write {name}({arguments}), or None for the default")

    @classmethod
    def unchecked(cls, **fields: Any) -> Self:
        """Returns a value with these fields, without validation; all that have no default must be among them.

        It is for fields that are valid already, such as other values. A run makes dozens of values: validation takes
        two to ten times as long, and pydantic's `model_construct` eight times.
        """
        return _new(cls, {**_blank_fields(cls), **fields}, set(fields))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Returns a copy with the fields in `update` replaced, without validation.

        A run makes dozens of copies, and pydantic's method takes twice as long: it covers extra fields and private
        attributes, which values don't have.
        """
        if deep or self.__pydantic_private__ is not None:
            return super().model_copy(update=update, deep=deep)
        update = update or {}
        return _new(type(self), {**self.__dict__, **update}, self.__pydantic_fields_set__.union(update))


class UserValue(Value):
    """Base class of values that users write, such as settings. Errors name a valid alternative, as in pool files.

    Errors in JSON are left to its reader, as a server words them in the terms of its API. Its clients may also send
    lists with a million errors, each of which would take a tenth of a millisecond.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    @classmethod
    def _expectation(cls, path: Sequence[int | str], kind: str) -> str | None:  # noqa: ARG003  (for subclasses)
        """Returns advice on the value at `path`, given pydantic's name of the error; `None` leaves the general one."""
        return None

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, values: Any, validate: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        try:
            return validate(values)
        except ValidationError as error:
            if info.mode == "json":
                raise
            raise explained(error, cls, expectation=cls._expectation) from None


# Setters of the slots of pydantic's models, which assign to frozen values, too.
_set_dict = BaseModel.__dict__["__dict__"].__set__
_set_fields_set = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__

_ValueT = TypeVar("_ValueT", bound=Value)


def _new(kind: type[_ValueT], fields: dict[str, Any], fields_set: set[str]) -> _ValueT:
    value = object.__new__(kind)
    _set_dict(value, fields)
    _set_fields_set(value, fields_set)
    _set_extra(value, None)
    _set_private(value, None)
    return value


@cache
def _blank_fields(kind: type[Value]) -> dict[str, Any]:
    """Returns the defaults of all fields, in the order in which they are serialised; `None` where there is none."""
    defaults = kind.model_construct().__dict__
    return {name: defaults.get(name) for name in kind.model_fields}


def _replace_surrogates(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()


Text = Annotated[str, AfterValidator(_replace_surrogates)]
"""Text from outside. Lone surrogates, which JSON may contain but UTF-8 can't encode, become `?`."""


def _refuse_single_name(names: Any) -> Any:
    if isinstance(names, str):
        raise PydanticCustomError("names", "write a list of names: [{name}]", {"name": repr(names)})
    return names


Names = Annotated[
    frozenset[str],
    BeforeValidator(_refuse_single_name),
    PlainSerializer(sorted, return_type=list[str], when_used="json"),
]
"""A set of names, serialised in sorted order, so that equal values have equal JSON."""


MAX_DIGITS = 60
"""Maximum digits of an amount of US dollars before the point, and zeros after it. Vendors, traces and pool files name
amounts, and `1e-999999999` written with all digits would take a gigabyte."""


def check_amount(amount: Decimal) -> Decimal:
    """Returns the amount. Raises `PydanticCustomError` if it is too large or too small to be one of US dollars."""
    if amount and abs(amount.adjusted()) > MAX_DIGITS:
        raise PydanticCustomError(
            "amount", "write an amount of US dollars with at most {digits} digits", {"digits": MAX_DIGITS}
        )
    return amount


def _all_digits(amount: Decimal) -> str:
    return f"{amount:f}" if amount else "0"


Dollars = Annotated[
    Decimal, AfterValidator(check_amount), PlainSerializer(_all_digits, return_type=str, when_used="json")
]
"""US dollars, serialised with all digits rather than in exponent notation (`3E-7`)."""

DecimalInput = Decimal | float | str
"""Anything that a `Decimal` field accepts. Type checkers expect a field's own type as the argument, so models with such
fields declare their `__init__` for them."""
