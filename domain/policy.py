"""What the host plugs in. Generic in the connection type, which the application binds to SQLAlchemy's `Connection`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, TypeVar

from lockledger.domain.holds import Hold, Metadata, RecordedEvent

C = TypeVar("C", contravariant=True)
K = TypeVar("K")

Clock = Callable[[], datetime]
"""Returns an aware datetime; asked at each decision."""

Names = Callable[[K, Collection[str]], Mapping[str, str]]
"""Display names of holders and actors, asked with the distinct ids of one answer; unknown ids may be left out."""


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """What `check_take` is asked about: who wants to take what, and who holds it now."""

    verb: Literal["take", "try_take", "take_all", "hold"]
    key: str
    holder: str
    actor: str
    current: Hold | None
    metadata: Metadata


class Policy(Protocol[C]):
    """The host's say. Subclass it and override what you need; each method does nothing by default.

    All three run in the transaction that makes the change, on its connection; what they raise passes unchanged, and
    nothing is recorded then.
    """

    # A method without a statement would be abstract to a type checker, and must be overridden then.

    def lock_subject(self, connection: C, key: str) -> None:
        """Lock the host's own row here. Run once per call and key by every writing verb, first."""
        return

    def check_take(self, connection: C, request: TakeRequest) -> None:
        """May this be taken? Raise `NotLockable(code=…)` or an exception of your own if not.

        Run after each read that a decision rests on, also when the holder has the hold already; so it may run again.
        """
        return

    def recorded(self, connection: C, events: Sequence[RecordedEvent]) -> None:
        """Write your own rows here: run once per append, after events and projections are written, before the commit."""
        return
