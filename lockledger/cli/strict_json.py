"""JSON as it may come from outside: decoded, or refused where two readers could understand it differently."""

import json
from typing import Any, NoReturn


class NotStrict(ValueError):
    """Says what is wrong, and where."""


def decoded(text: str) -> Any:
    """The value; a repeated name, NaN, an endless number or nesting without end are refused as what JSON does not allow."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as fault:
        raise NotStrict(f"{fault.msg}, at character {fault.pos + 1}") from None
    except NotStrict:
        raise
    except RecursionError:
        raise NotStrict("it is nested too deeply") from None
    except ValueError:
        raise NotStrict("a number in it has too many digits; write it as a text") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise NotStrict(f"it says {repeated!a} twice")
    return value


def _constant(name: str) -> NoReturn:
    raise NotStrict(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
