"""How far a long command has come, on a line of a terminal that is drawn over; nowhere else."""

import sys
import time
from typing import Final

from lockledger.cli.output import animates

_SECONDS_BETWEEN_DRAWINGS: Final = 0.2


class Progress:
    """Commands done, commands a second and time left; silent unless standard error is a terminal."""

    def __init__(self) -> None:
        self.done = 0
        self._animates = animates(sys.stderr)
        self._began = self._drawn = time.monotonic()
        self._first_fraction: float | None = None

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    @property
    def rate(self) -> float:
        """Commands a second since it began."""
        return self.done / max(self.seconds, 1e-9)

    def advance(self, fraction: float | None) -> None:
        """One more command is done; `fraction`: how much of the whole that is, where it is known."""
        self.done += 1
        if not self._animates:
            return
        if self._first_fraction is None:
            self._first_fraction = fraction
        now = time.monotonic()
        if now - self._drawn >= _SECONDS_BETWEEN_DRAWINGS:
            self._drawn = now
            sys.stderr.write(f"\r{self._line(fraction)}\x1b[K")
            sys.stderr.flush()

    def clear(self) -> None:
        """Leaves the line empty for what comes after."""
        if self._animates:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _line(self, fraction: float | None) -> str:
        line = f"{self.done:,} commands  {self.rate:,.0f}/s"
        if fraction is None or self._first_fraction is None:
            return line
        line += f"  {fraction:.0%}"
        gone = fraction - self._first_fraction
        if gone <= 0:
            return line
        left = self.seconds * (1 - fraction) / gone
        return f"{line}  {duration(left)} left"


def duration(seconds: float) -> str:
    """A length of time for a person, to the second."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
