"""The package's public names."""

import drmas_pl


def test_every_public_name_exists_and_is_listed_once() -> None:
    assert len(set(drmas_pl.__all__)) == len(drmas_pl.__all__)
    assert set(drmas_pl._HOMES) | {"__version__"} == set(drmas_pl.__all__)
    for name in drmas_pl.__all__:
        assert getattr(drmas_pl, name) is not None
