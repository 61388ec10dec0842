from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvitationError
from atoll.world.live.keys import Identity, Invitation

ADDRESSES = st.lists(st.tuples(st.text(min_size=1, max_size=20), st.integers(1, 65535)), max_size=3)


@given(st.binary(min_size=32, max_size=32), ADDRESSES)
def test_an_invitation_is_read_as_it_was_written(secret: bytes, addresses: list[tuple[str, int]]) -> None:
    invitation = Invitation(secret, tuple(addresses))
    assert Invitation.parse(str(invitation)) == invitation
    assert Invitation.parse(f" {str(invitation)[:20]}\n{str(invitation)[20:]} ") == invitation
    assert secret.hex() not in invitation.run_id


@given(st.text(max_size=60))
def test_what_is_no_invitation_is_refused(text: str) -> None:
    for wrong in (text, "atoll1-" + text):
        with pytest.raises(InvitationError):
            Invitation.parse(wrong)


def test_half_of_an_invitation_is_refused() -> None:
    whole = str(Invitation.new((("host", 7700),)))
    for end in range(0, len(whole) - 1, 7):
        with pytest.raises(InvitationError):
            Invitation.parse(whole[:end])


def test_a_key_is_kept_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "node"
    first, again, other = Identity(bytes(32), file), Identity(bytes(32), file), Identity(bytes(32))
    assert first.id == again.id != other.id
    assert file.stat().st_mode & 0o077 == 0, "for its owner alone"
    file.write_bytes(b"nonsense")
    with pytest.raises(InvitationError, match="is not a node's key"):
        Identity(bytes(32), file)
