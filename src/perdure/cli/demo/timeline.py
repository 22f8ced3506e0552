"""What the services wrote down, as a picture: one lane per worker, one bar per request, and the kill.

Text is monospaced, so its width is known without asking a font; a label that would lie on another one moves down a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

from perdure.cli.demo.figures import Kill, Sending, Step, steps_of

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

COLOURS = {"model": "#4c78a8", "tickets": "#72b7b2", "lost": "#e45756"}
LEGEND = {"model": "model call", "tickets": "ticket call", "lost": "in flight at the kill"}


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


def draw(sendings: Iterable[Sending], kill: Kill) -> str:
    """The timeline as an SVG document."""
    return lay_out(steps_of(sendings), kill).svg()


def lay_out(steps: Sequence[Step], kill: Kill) -> Picture:
    """Where everything goes. No text touches another and nothing leaves the picture: a test holds that."""
    asked = [(step.number, sending) for step in steps for sending in step.sendings]
    times = [kill.at, *(at for _, each in asked for at in (each.received_at, each.answered_at) if at is not None)]
    scale = Scale(min(times), max(times))
    boxes: list[Box] = []
    texts = [Text(MARGIN, 30, f"{len(steps)} steps as the services saw them, killed in step {kill.in_step}")]
    top = 84.0
    for pid in sorted({each.pid for _, each in asked}, key=lambda pid: pid != kill.pid):
        mine = [(number, each) for number, each in asked if each.pid == pid]
        boxes += [bar(number, each, scale, kill.at, top) for number, each in mine]
        labels = step_numbers(mine, kill, scale, top + BAR + ROW)
        texts += [Text(MARGIN, top + BAR * 0.7, f"worker {pid}"), *labels]
        top = max([top + BAR, *(label.y for label in labels)]) + ROW
    again = [each.received_at for number, each in asked if number == kill.in_step and each.received_at > kill.at]
    boxes = [*gap(kill.at, min(again, default=kill.at), scale, top), *boxes]
    after = f", step {kill.in_step} again after {min(again) - kill.at:.2f} s" if again else ""
    texts.append(before(scale.x(kill.at) - 8, 66, f"kill -9{after}"))
    ticks = [scale.begin + tick for tick in round_times(scale.end - scale.begin)]
    boxes += [Box(scale.x(tick), top, 1, 5, "#777") for tick in ticks]
    texts += axis(ticks, scale, top + ROW)
    legend = [Text(LEFT + 24 + 220 * n, top + 3 * ROW, words) for n, words in enumerate(LEGEND.values())]
    boxes += [
        Box(label.x - 18, label.y - 10, 12, 12, COLOURS[kind]) for label, kind in zip(legend, LEGEND, strict=True)
    ]
    return Picture(WIDTH, top + 4 * ROW, tuple(boxes), (*texts, *legend))


def bar(number: int, sending: Sending, scale: Scale, killed_at: float, top: float) -> Box:
    """From the request to its answer; without one, to the kill."""
    lost = sending.answered_at is None
    end = killed_at if sending.answered_at is None else sending.answered_at
    width = max(1.5, scale.x(end) - scale.x(sending.received_at))
    title = f"step {number}: {sending.method} {sending.path}, {(end - sending.received_at) * 1000:.0f} ms"
    return Box(scale.x(sending.received_at), top, width, BAR, COLOURS["lost" if lost else sending.service], title)


def gap(killed_at: float, again_at: float, scale: Scale, bottom: float) -> list[Box]:
    """The kill as a line, and the time in which nothing happened as a pale stripe."""
    x, height = scale.x(killed_at), bottom - 56
    return [
        Box(x, 56, scale.x(again_at) - x, height, COLOURS["lost"], "nobody works", opacity=0.15),
        Box(x - 1, 56, 2, height, COLOURS["lost"]),
    ]


def step_numbers(asked: Sequence[tuple[int, Sending]], kill: Kill, scale: Scale, y: float) -> list[Text]:
    """Numbers under the first, the last, every tenth and the killed step; one that has no room moves down."""
    shown = [(n, each) for n, each in asked if n % 10 == 0 or n in {1, kill.in_step} or (n, each) == asked[-1]]
    line = scale.x(kill.at)
    labels: list[Text] = []
    for number, each in shown:
        label = Text(scale.x(each.received_at), y, str(number), COLOURS["lost"] if number == kill.in_step else "#222")
        label = replace(label, x=min(label.x, WIDTH - MARGIN - label.width))
        if label.x < line + 3 and line - 3 < label.x + label.width:
            label = replace(label, x=line - 3 - label.width if each.received_at < kill.at else line + 3)
        while any(label.touches(other) for other in labels):
            label = replace(label, y=label.y + ROW)
        labels.append(label)
    return labels


def round_times(seconds: float) -> list[float]:
    """A handful of round times from 0 on."""
    pace = next(pace for pace in PACES if seconds / pace <= TICKS_MAX)
    return [round(n * pace, 3) for n in range(int(seconds / pace) + 1)]


def axis(ticks: Sequence[float], scale: Scale, y: float) -> list[Text]:
    """What stands under the ticks, each centred as far as the picture allows."""
    texts = [Text(scale.x(tick), y, f"{tick - scale.begin:.3g}", "#777") for tick in ticks]
    centred = [replace(text, x=min(text.x - text.width / 2, WIDTH - MARGIN - text.width)) for text in texts]
    return [Text(MARGIN, y, "seconds", "#777"), *centred]


def before(right: float, y: float, words: str) -> Text:
    """A text that ends at `right`, or begins at the margin if it is too long for that."""
    return Text(max(MARGIN, right - Text(0, 0, words).width), y, words, COLOURS["lost"])
