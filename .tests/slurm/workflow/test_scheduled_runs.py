from __future__ import annotations
from scheduled_checkout import ScheduledCheckout


def test_two(checkout: ScheduledCheckout) -> None:
    done = checkout.run()
    print(done.text, done.seconds)
    for e in checkout.journal("submitted") + checkout.journal("ended"):
        print(e)
    assert done.rc == 0
    checkout.assert_nothing_left(5)
    again = checkout.run()
    print(again.text, again.seconds)
    assert 0
