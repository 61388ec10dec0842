"""Lines and labels on a grid of characters, for terminals.  Lines are braille dots, two by four a character."""

from rich.text import Text

__all__ = ["Canvas"]

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class Canvas:
    """A drawing of `width` by `height` characters; places are given as shares of both, from the top left."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._dots = [[0] * width for _ in range(height)]
        self._styles = [[""] * width for _ in range(height)]
        self._labels: dict[tuple[int, int], tuple[str, str]] = {}

    def line(
        self, start: tuple[float, float], end: tuple[float, float], *, style: str = "", dashed: bool = False
    ) -> None:
        (x0, y0), (x1, y1) = self._dot(start), self._dot(end)
        length = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(length + 1):
            if dashed and step % 6 > 3:
                continue
            x = round(x0 + (x1 - x0) * step / length)
            y = round(y0 + (y1 - y0) * step / length)
            self._dots[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
            self._styles[y // 4][x // 2] = style

    def label(self, place: tuple[float, float], text: str, *, style: str = "bold") -> None:
        """Writes `text` centred on a place."""
        x, y = self._dot(place)
        row = y // 4
        first = min(max(x // 2 - len(text) // 2, 0), max(self.width - len(text), 0))
        for offset, character in enumerate(text[: self.width]):
            self._labels[row, first + offset] = character, style

    def text(self) -> Text:
        drawn = Text()
        for row in range(self.height):
            for column in range(self.width):
                character, style = self._labels.get((row, column), ("", ""))
                if not character:
                    dots = self._dots[row][column]
                    character, style = (chr(0x2800 + dots), self._styles[row][column]) if dots else (" ", "")
                drawn.append(character, style or None)
            drawn.rstrip()
            drawn.append("\n")
        return drawn

    def _dot(self, place: tuple[float, float]) -> tuple[int, int]:
        return round(place[0] * (self.width * 2 - 1)), round(place[1] * (self.height * 4 - 1))
