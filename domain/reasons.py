"""Reasons: what a person wrote, for a person to read."""

from unicodedata import category

from lockledger.domain.errors import InvalidReason, shown

MAX_REASON_LENGTH = 2000


def check_reason(reason: str | None, *, mandatory: bool = False) -> str | None:
    """The stripped reason, `None` when it is missing or blank.

    At most 2,000 characters after stripping; no control characters but newline and tab, no surrogates. Raises
    `InvalidReason`, also for a blank one where it is mandatory; `TypeError` for anything but a text.
    """
    if reason is not None and not isinstance(reason, str):
        raise TypeError(f"a reason must be a str, not {type(reason).__name__} {shown(reason)}")
    text = "" if reason is None else str.__str__(reason).strip()
    if not text:
        if mandatory:
            raise InvalidReason(f"a reason is mandatory here, {shown(reason)} was given; say why")
        return None
    if len(text) > MAX_REASON_LENGTH:
        raise InvalidReason(
            f"the reason {shown(text)} has {len(text)} characters, at most {MAX_REASON_LENGTH} are allowed"
        )
    for character in text:
        if character not in "\n\t" and category(character) in ("Cc", "Cs"):
            raise InvalidReason(
                f"the reason {shown(text)} holds {character!a}; only newline and tab are allowed"
            )
    return text
