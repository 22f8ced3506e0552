"""What the services wrote down, as a picture: one lane per worker, one bar per request, and the kills.

Text is monospaced, so its width is known without asking a font; a label that would lie on another one moves down a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

from perdure.cli.demo.figures import Kill, Sending, steps_of

WIDTH = 1000
MARGIN = 24
LEFT = 150
"""Where time begins: left of it stand the names of the lanes."""
BAR = 26
FONT = 12
CHARACTER = 0.62 * FONT
"""A monospaced character is 0.6 of its size wide; a little more, for fonts that stand in."""
ROW = 18
PACES = [unit * power for power in (0.01, 0.1, 1, 10, 100, 1000) for unit in (1, 2, 5)]
TICKS_MAX = 10
LINES, FIRST_LANE = 54.0, 66.0
"""Where the lines of the kills begin, and the lanes."""

COLOURS = {"model": "#4c78a8", "tickets": "#72b7b2", "payments": "#f2a93b", "look": "#b279a2", "lost": "#e45756"}
LEGEND = {
    "model": "model call",
    "tickets": "ticket call",
    "payments": "payment",
    "look": "look-up",
    "lost": "in flight at a kill",
}


@dataclass(frozen=True)
class Text:
    """A label. `x` is its left end, `y` its baseline."""

    x: float
    y: float
    words: str
    colour: str = "#222"

    @property
    def width(self) -> float:
        return CHARACTER * len(self.words)

    def touches(self, other: Text) -> bool:
        """Whether one lies on the other, or so near that they read as one."""
        apart = self.x + self.width + CHARACTER / 2 < other.x or other.x + other.width + CHARACTER / 2 < self.x
        return not apart and abs(self.y - other.y) < FONT * 1.2

    def svg(self) -> str:
        return f'<text x="{self.x:.1f}" y="{self.y:.1f}" fill="{self.colour}">{escape(self.words)}</text>'


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str = ""
    opacity: float = 1.0

    def svg(self) -> str:
        size = f'x="{self.x:.1f}" y="{self.y:.1f}" width="{self.width:.1f}" height="{self.height:.1f}"'
        title = f"<title>{escape(self.title)}</title>" if self.title else ""
        return f'<rect {size} fill="{self.colour}" opacity="{self.opacity:g}">{title}</rect>'


@dataclass(frozen=True)
class Picture:
    width: float
    height: float
    boxes: tuple[Box, ...]
    texts: tuple[Text, ...]

    def svg(self) -> str:
        size = f'width="{self.width:.0f}" height="{self.height:.0f}" viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="{FONT}">',
                f'<rect width="{self.width:.0f}" height="{self.height:.0f}" fill="white"/>',
                *(box.svg() for box in self.boxes),
                *(text.svg() for text in self.texts),
                "</svg>\n",
            ]
        )


@dataclass(frozen=True)
class Scale:
    """Seconds to pixels, over the whole width."""

    begin: float
    end: float

    def x(self, at: float) -> float:
        return LEFT + (at - self.begin) / max(self.end - self.begin, 0.001) * (WIDTH - LEFT - MARGIN)


def draw(sendings: Iterable[Sending], kills: Sequence[Kill]) -> str:
    """The timeline as an SVG document."""
    return lay_out(sendings, kills).svg()


NO_STEP = 0
Asked = tuple[int, Sending]
"""A request, and which step it belongs to; a look-up is none."""


def lay_out(sendings: Iterable[Sending], kills: Sequence[Kill]) -> Picture:
    """Where everything goes. No text touches another and nothing leaves the picture: a test holds that."""
    sendings = [each for each in sendings if each.is_agents]
    steps = steps_of(sendings)
    asked = [(step.number, each) for step in steps for each in step.sendings]
    asked += [(NO_STEP, each) for each in sendings if each.is_look]
    times = [at for _, each in asked for at in (each.received_at, each.answered_at) if at is not None]
    scale = Scale(min([*times, kills[0].at]), max([*times, kills[-1].at]))
    died_at = {kill.pid: kill.at for kill in kills}
    boxes: list[Box] = []
    texts = [Text(MARGIN, 24 + ROW * n, words) for n, words in enumerate(heading(len(steps), kills, sendings))]
    top = FIRST_LANE
    for pid in sorted({each.pid for each in sendings}, key=lambda pid: died_at.get(pid, math.inf)):
        mine = [(number, each) for number, each in asked if each.pid == pid]
        boxes += [bar(number, each, scale, died_at.get(pid, scale.end), top) for number, each in mine]
        labels = step_numbers(mine, kills, scale, top + BAR + ROW)
        texts += [Text(MARGIN, top + BAR * 0.7, f"worker {pid}"), *labels]
        top = max([top + BAR, *(label.y for label in labels)]) + ROW
    boxes = [*(box for kill in kills for box in gap(kill, sendings, scale, top)), *boxes]
    ticks = [scale.begin + tick for tick in round_times(scale.end - scale.begin)]
    boxes += [Box(scale.x(tick), top, 1, 5, "#777") for tick in ticks]
    texts += axis(ticks, scale, top + ROW)
    legend = [Text(LEFT + 24 + 165 * n, top + 3 * ROW, words) for n, words in enumerate(LEGEND.values())]
    boxes += [
        Box(label.x - 18, label.y - 10, 12, 12, COLOURS[kind]) for label, kind in zip(legend, LEGEND, strict=True)
    ]
    return Picture(WIDTH, top + 4 * ROW, tuple(boxes), (*texts, *legend))


def heading(steps: int, kills: Sequence[Kill], sendings: Sequence[Sending]) -> list[str]:
    again = [again_at(kill, sendings) - kill.at for kill in kills]
    killed = f"kill -9 in step {words(str(kill.in_step) for kill in kills)}"
    return [
        f"{steps} steps as the services saw them",
        f"{killed}, on again after {words(f'{seconds:.2f}' for seconds in again)} s",
    ]


def words(each: Iterable[str]) -> str:
    *first, last = each
    return f"{', '.join(first)} and {last}" if first else last


def again_at(kill: Kill, sendings: Iterable[Sending]) -> float:
    """When another worker sent something; without one, the time of the kill."""
    return min((each.received_at for each in sendings if each.received_at > kill.at), default=kill.at)


def bar(number: int, sending: Sending, scale: Scale, killed_at: float, top: float) -> Box:
    """From the request to its answer; without one, to the kill."""
    is_lost = sending.answered_at is None
    end = killed_at if sending.answered_at is None else sending.answered_at
    width = max(1.5, scale.x(end) - scale.x(sending.received_at))
    kind = "lost" if is_lost else "look" if sending.is_look else sending.service
    what = "look-up" if number == NO_STEP else f"step {number}"
    title = f"{what}: {sending.method} {sending.path}, {(end - sending.received_at) * 1000:.0f} ms"
    return Box(scale.x(sending.received_at), top, width, BAR, COLOURS[kind], title)


def gap(kill: Kill, sendings: Iterable[Sending], scale: Scale, bottom: float) -> list[Box]:
    """The kill as a line, and the time in which nothing was sent as a pale stripe."""
    x, height = scale.x(kill.at), bottom - LINES
    return [
        Box(x, LINES, scale.x(again_at(kill, sendings)) - x, height, COLOURS["lost"], "nobody works", opacity=0.15),
        Box(x - 1, LINES, 2, height, COLOURS["lost"]),
    ]


def step_numbers(asked: Sequence[Asked], kills: Sequence[Kill], scale: Scale, y: float) -> list[Text]:
    """Numbers under the first, the last, every tenth and the killed steps; one that has no room moves aside or down."""
    killed, lines = {kill.in_step for kill in kills}, [scale.x(kill.at) for kill in kills]
    numbered = [(number, each) for number, each in asked if number != NO_STEP]
    shown = [(n, each) for n, each in numbered if n % 10 == 0 or n in {1, *killed} or (n, each) == numbered[-1]]
    labels: list[Text] = []
    for number, each in shown:
        label = Text(scale.x(each.received_at), y, str(number), COLOURS["lost"] if number in killed else "#222")
        label = beside(lines, replace(label, x=min(label.x, WIDTH - MARGIN - label.width)))
        while any(label.touches(other) for other in labels):
            label = replace(label, y=label.y + ROW)
        labels.append(label)
    return labels


def beside(lines: Sequence[float], label: Text) -> Text:
    """The label where no line crosses it, as near as may be to where it was."""
    places = [label.x, *(line - 3 - label.width for line in lines), *(line + 3 for line in lines)]
    free = [
        x
        for x in places
        if x + label.width <= WIDTH - MARGIN and not any(x - 3 < line < x + label.width + 3 for line in lines)
    ]
    return replace(label, x=min(free, key=lambda x: abs(x - label.x)))


def round_times(seconds: float) -> list[float]:
    """A handful of round times from 0 on."""
    pace = next(pace for pace in PACES if seconds / pace <= TICKS_MAX)
    return [round(n * pace, 3) for n in range(int(seconds / pace) + 1)]


def axis(ticks: Sequence[float], scale: Scale, y: float) -> list[Text]:
    """What stands under the ticks, each centred as far as the picture allows."""
    texts = [Text(scale.x(tick), y, f"{tick - scale.begin:.3g}", "#777") for tick in ticks]
    centred = [replace(text, x=min(text.x - text.width / 2, WIDTH - MARGIN - text.width)) for text in texts]
    return [Text(MARGIN, y, "seconds", "#777"), *centred]
