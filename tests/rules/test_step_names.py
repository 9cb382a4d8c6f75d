"""Steps that a run records by itself are named by the call of the handler."""

from __future__ import annotations

import pytest

from holdfast.step_names import shown_step


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("plan", "step 'plan'"),
        ("search/1:2", "step 'search/1:2'"),
        ("~sleep:1", "call 1 of run.sleep"),
        ("~uuid:1.0.2", "call 1.0.2 of run.uuid"),
        ("~started:r1/child:1", "run.start of child 'r1/child:1'"),
        ("~detached:r1-d", "run.start of child 'r1-d'"),
        ("~result:r1/child:1", "result() of child 'r1/child:1'"),
        ("~signal:go:1", "call 1 of run.signal('go')"),
        ("~signal:go:1:timeout", "call 1 of run.signal('go')"),
        ("~took:go:1.0.1", "call 1.0.1 of run.signal('go')"),
        ("~handed-over", "step '~handed-over'"),
    ],
)
def test_a_step_is_named_by_the_call_that_recorded_it(step: str, said: str) -> None:
    assert shown_step(step) == said
