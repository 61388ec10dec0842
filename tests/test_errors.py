from atoll import errors


def test_everything_derives_from_one_root() -> None:
    raised = [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]
    assert all(issubclass(error, errors.AtollError) for error in raised)
    assert issubclass(errors.NetworkError, errors.UserError)


def test_the_tree_is_drawn() -> None:
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in errors.__all__ if name[0].isupper())
