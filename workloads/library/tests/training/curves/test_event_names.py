"""Tests the names of TensorBoard's event files, by which it orders what several starts wrote."""

from holdfast.training.curves.event_names import EventNames

NOW_S = 1_795_973_734.5


def test_a_later_start_in_the_same_second_comes_after_the_earlier_one() -> None:
    earlier = EventNames([]).make("events.out.tfevents.1795973734.vm.9984.0", NOW_S)
    names = EventNames([f"curves-run/{earlier}"])
    later = names.make("events.out.tfevents.1795973734.vm.10056.0", NOW_S)
    last = names.make("events.out.tfevents.1795973734.vm.10056.1", NOW_S)
    assert earlier < later < last


def test_a_machine_whose_clock_is_behind_comes_after_the_earlier_one() -> None:
    earlier = "events.out.tfevents.1795973900.other-machine.1.0"
    later = EventNames([earlier]).make("events.out.tfevents.1795973734.vm.2.0", NOW_S)
    assert earlier < later
