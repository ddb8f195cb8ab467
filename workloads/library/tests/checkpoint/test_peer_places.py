"""Which node keeps the copies of which."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.peers.places import neighbour_of

ZONES = st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=2, max_size=12)


@given(ZONES)
def test_each_place_keeps_the_copies_of_one_other_in_another_zone_where_possible(zones: list[str]) -> None:
    places = range(len(zones))
    found = [neighbour_of(place, zones) for place in places]
    assert sorted(found) == [*places] and all(found[place] != place for place in places)
    alike = sum(zones[place] == zones[found[place]] for place in places)
    assert alike == max(0, 2 * max(map(zones.count, zones)) - len(zones)), "no other choice has fewer"


def test_the_largest_level_decides_in_which_domains_differ_and_else_the_place() -> None:
    assert [neighbour_of(place, [""] * 4) for place in range(4)] == [1, 2, 3, 0]
    racks = ["z/r1", "z/r1", "z/r2", "z/r2"]
    assert [neighbour_of(place, racks) for place in range(4)] == [2, 3, 0, 1]
    zones = ["y/r1", "y/r2", "z/r3", "z/r4"]
    assert [neighbour_of(place, zones) for place in range(4)] == [2, 3, 0, 1]
