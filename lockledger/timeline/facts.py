"""What is said of a hold, in sentences whose foreign parts are known: ids, names and reasons turn no text around them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lockledger.domain.holds import Hold
from lockledger.timeline.words import exact, isolated, lasting, plain


class Foreign(str):
    """Text that somebody else wrote."""

    __slots__ = ()


Sentence: TypeAlias = list[str]
"""Parts of a text, the foreign ones marked."""


@dataclass(frozen=True)
class Telling:
    """Tells of holds, with the host's names behind the ids."""

    names: Mapping[str, str | None]

    def label(self, holder: str) -> str:
        """What stands on a bar: the name, else the id."""
        return plain(str(self.names.get(holder) or holder))

    def who(self, someone: str) -> Sentence:
        """The id, and the name where there is one."""
        name = self.names.get(someone)
        return [Foreign(someone), *([" (", Foreign(name), ")"] if name else [])]

    def began(self, hold: Hold) -> Sentence:
        """How the hold began, and why."""
        if hold.taken_over_from is None:
            return ["taken"]
        return ["taken over from ", *self.who(hold.taken_over_from), *_why(hold.takeover_reason)]

    def ended(self, hold: Hold) -> Sentence:
        """How the hold ended, by whom and why, or that it has not."""
        if hold.ended_at is None:
            if hold.expires_at is None:
                return ["still held, without expiry"]
            return [f"still held, until {exact(hold.expires_at)}"]
        how = {"release": "released", "forced": "released by force", "takeover": "taken over"}
        said = [how.get(hold.ended_by or "", "expired")]
        actor = hold.ended_by_actor
        if actor is not None and (hold.ended_by != "release" or actor != hold.holder):
            said += [" by ", *self.who(actor)]
        return said + _why(hold.end_reason)

    def title(self, hold: Hold) -> str:
        """All facts of a hold, a line each, as plain text."""
        end = "" if hold.ended_at is None else f" until {exact(hold.ended_at)}, {lasted(hold)}"
        lines: list[Sentence] = [
            [Foreign(hold.key)],
            ["held by ", *self.who(hold.holder), f", token {hold.token}"],
            [f"from {exact(hold.taken_at)}{end}"],
            self.began(hold),
            self.ended(hold),
        ]
        return "\n".join(as_text(line) for line in lines)


def lasted(hold: Hold) -> str:
    """How long an ended hold lasted; nothing for one that is still live."""
    return "" if hold.ended_at is None else lasting(hold.ended_at - hold.taken_at)


def as_text(sentence: Sentence) -> str:
    """The sentence as plain text."""
    return "".join(isolated(part) if isinstance(part, Foreign) else part for part in sentence)


def _why(reason: str | None) -> Sentence:
    return [": ", Foreign(reason)] if reason else []
