"""Lost rows on a server are damage; they are never read as fewer rows or none."""

from __future__ import annotations

from typing import Any

import pytest
from tests.backends import lost_numbers

import holdfast
from holdfast.errors import UnknownRef
from holdfast.sessions import ActivePath, Child, FullGraph

SPENT = holdfast.Usage("turn", "large", input_tokens=1)


def test_lost_counters_are_never_read_as_an_empty_or_a_smaller_ledger(
    clean_postgres_url: str, postgres_database: Any
) -> None:
    with holdfast.open_blocking(clean_postgres_url) as store, holdfast.open_blocking(clean_postgres_url) as other:
        session = store.sessions.create("chat")
        for model in ("small", "large"):
            session.commit(holdfast.Commit(usage=[holdfast.Usage("turn", model, input_tokens=5)]))
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        fork = store.sessions.fork("chat", into="fork")
        for where in ("WHERE model = 'small'", ""):
            postgres_database.administrator.run(f"DELETE FROM holdfast.usage {where}")
            for chat in (session, other.sessions.handle("chat")):
                for scope, at in ((None, None), (None, 2), (FullGraph(), None)):
                    with pytest.raises(holdfast.Corrupt) as info:
                        chat.load(scope or ActivePath(), at=at)
                    assert info.value.table == "usage"
            # The next turn, with the head cached or read, does not hide the loss.
            for chat in (session, other.sessions.handle("chat")):
                chat.commit(holdfast.Commit(usage=[SPENT]))
                with pytest.raises(holdfast.Corrupt):
                    chat.load()
            assert {finding.table for finding in store.maintenance.verify().findings} == {"usage"}
        view = fork.load()
        assert view is not None
        assert view.ledger == ()


def test_bytes_that_the_parent_lost_are_not_taken_over(clean_postgres_url: str, postgres_database: Any) -> None:
    with holdfast.open_blocking(clean_postgres_url) as store:
        parent = store.sessions.create("parent")
        ref = parent.attachments.put(b"abc")
        parent.commit(holdfast.Commit(attachments=[ref.id]))
        child = store.sessions.create("child", relation=Child("parent"))
        child.commit(holdfast.Commit())
        postgres_database.administrator.run("DELETE FROM holdfast.attachment_objects")
        with pytest.raises(UnknownRef, match=ref.id):
            child.commit(holdfast.Commit(attachments=[ref.id]))
        view = child.load()
        assert view is not None
        assert (view.revision, len(child.attachments.list())) == (1, 0)


def test_a_row_lost_from_the_middle_is_damage_and_never_passed_over(
    clean_postgres_url: str, postgres_database: Any
) -> None:
    def lose(table: str, where: str) -> None:
        postgres_database.administrator.run(f"DELETE FROM holdfast.{table} WHERE {where}")

    with holdfast.open_blocking(clean_postgres_url) as store:
        lost_numbers.check(store, lose)
