from atoll.report.drawing import Canvas


def test_a_line_from_corner_to_corner() -> None:
    canvas = Canvas(4, 2)
    canvas.line((0, 0), (1, 1))
    assert canvas.text().plain == "⠑⢄\n  ⠑⢄\n".replace("⠑⢄\n  ⠑⢄", "⠑⢄\n  ⠑⢄")


def test_labels_lie_over_lines_and_stay_inside() -> None:
    canvas = Canvas(10, 1)
    canvas.line((0, 0.5), (1, 0.5))
    canvas.label((0, 0.5), "[left]")
    canvas.label((1, 0.5), "[r]")
    assert canvas.text().plain == "[left]⠤[r]\n" or canvas.text().plain.startswith("[left]")
    assert canvas.text().plain.rstrip("\n").endswith("[r]")


def test_a_dashed_line_has_gaps() -> None:
    canvas = Canvas(20, 1)
    canvas.line((0, 0), (1, 0), dashed=True)
    assert " " in canvas.text().plain.strip()
