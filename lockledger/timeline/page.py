"""The page that stands alone: the drawing, and below it the same holds as a table."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from lockledger.domain.holds import Hold
from lockledger.timeline import svg
from lockledger.timeline.facts import Foreign, Sentence, lasted
from lockledger.timeline.words import exact, moment, plain, xml, xml_lines

_STYLE: Final = """
:root { color-scheme: light; }
body { margin: 1.5rem; color: #1a1a1a; background: #fff; line-height: 1.4;
  font-family: system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
p { margin: .25rem 0; color: #555; }
figure { margin: 1rem -1rem 0; overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 56rem; max-width: 100rem; height: auto; }
.hold:hover .bar { stroke-width: 2; }
.holds { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #d9d9d9;
  overflow-wrap: anywhere; }
thead th { border-bottom: 2px solid #333; position: sticky; top: 0; background: #fff; white-space: nowrap; }
tbody th { font-weight: 600; min-width: 16em; }
td { min-width: 8em; white-space: pre-line; }
td.how { min-width: 12em; }
td.at { min-width: 0; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.number { min-width: 0; text-align: right; }
@media (min-width: 70rem) { .holds { overflow: visible; } }
@media print {
  @page { size: A4 landscape; margin: 12mm; }
  body { margin: 0; font-size: 9pt; }
  figure, tr { break-inside: avoid; }
  figure, .holds { overflow: visible; }
  figure svg { min-width: 0; }
  table { font-size: 7.5pt; }
  th, td { padding: .2em .5em; }
  thead th { position: static; }
}
"""
_COLUMNS: Final = ("Lock", "Holder", "From", "Until", "Lasted", "Began", "Ended", "Token")


def page(picture: svg.Picture, title: str, lines: Sequence[str]) -> str:
    """The whole page, as HTML that is well-formed XML too."""
    return "\n".join(_lines(picture, title, lines)) + "\n"


def _lines(picture: svg.Picture, title: str, lines: Sequence[str]) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en">\n<head>'
    yield '<meta charset="utf-8"/>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield f"<title>{xml(title)}</title>"
    yield f"<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{bdi(title)}</h1>"
    yield from (f"<p>{bdi(line)}</p>" for line in lines)
    if picture.lanes:
        yield f"<figure>{_image([picture.legend()], 'What the marks mean')}</figure>"
    for part, keys in picture.panels():
        shown = keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"
        yield f"<figure>\n{_image([part], f'Timeline: {plain(shown)}')}</figure>"
    if picture.lanes:
        yield from _table(picture)
    yield "</body>\n</html>"


def _image(parts: Sequence[svg.Part], title: str) -> str:
    return svg.image(parts, title, "The table of holds below tells the same.")


def _table(picture: svg.Picture) -> Iterator[str]:
    yield '<h2 id="holds">Holds</h2>\n<div class="holds">\n<table aria-labelledby="holds">'
    heads = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    yield f"<thead><tr>{heads}</tr></thead>\n<tbody>"
    for of_lock in picture.lanes.values():
        yield from (_row(picture, hold) for hold in of_lock)
    yield "</tbody>\n</table>\n</div>"


def _row(picture: svg.Picture, hold: Hold) -> str:
    telling = picture.telling
    cells = [
        f'<th scope="row">{bdi(hold.key)}</th>',
        f"<td>{_told(telling.who(hold.holder))}</td>",
        f'<td class="at">{_time(hold.taken_at)}</td>',
        f'<td class="at">{"" if hold.ended_at is None else _time(hold.ended_at)}</td>',
        f'<td class="at">{lasted(hold)}</td>',
        f'<td class="how">{_told(telling.began(hold))}</td>',
        f'<td class="how">{_told(telling.ended(hold))}</td>',
        f'<td class="number">{hold.token}</td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _time(instant: datetime) -> str:
    """To the second for the eye, exact for who points at it or reads the page by program."""
    return f'<time datetime="{exact(instant)}" title="{exact(instant)}">{moment(instant)}</time>'


def _told(sentence: Sentence) -> str:
    return "".join(bdi(part) if isinstance(part, Foreign) else xml(part) for part in sentence)


def bdi(text: str) -> str:
    """Foreign text, whose direction changes nothing around it."""
    return f"<bdi>{xml_lines(text)}</bdi>"
