"""DBOS: a turn is a step of a durable workflow, and its result is the step's recorded output."""

from __future__ import annotations

from typing import Any

import sqlalchemy
from dbos import DBOS, SetWorkflowID

from benchmarks import child

PENDING: dict[str, Any] = {}


@DBOS.step()
def one_turn(number: int) -> str:
    turn = PENDING["turns"][number]
    return turn.question + turn.answer + turn.state


@DBOS.workflow()
def conversation(count: int) -> None:
    PENDING["timing"] = child.one_after_another(range(count), one_turn)


class Steps:
    """A workflow for each round and session."""

    def __init__(self) -> None:
        self.lanes = child.Lanes()
        self.workflows: list[str] = []

    def open(self, url: str) -> dict[str, Any]:
        self.url = url
        engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:", 1))
        with engine.connect() as connection:
            if url.startswith("sqlite"):
                durable = connection.execute(sqlalchemy.text("PRAGMA synchronous")).scalar() >= 2
            else:
                asked = sqlalchemy.text("SELECT current_setting('fsync'), current_setting('synchronous_commit')")
                durable = tuple(connection.execute(asked).one()) == ("on", "on")
        DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"})
        DBOS.launch()
        return {"durable": durable}

    def turns(self, sessions: int, turns: int) -> dict[str, Any]:
        assert sessions == 1
        (PENDING["turns"],) = self.lanes.next(1, turns)
        self.workflows.append(f"round-{len(self.workflows)}")
        with SetWorkflowID(self.workflows[-1]):
            conversation(turns)
        timing: dict[str, Any] = PENDING["timing"]
        return timing

    def audit(self) -> dict[str, Any]:
        outputs = [step["output"] for each in self.workflows for step in DBOS.list_workflow_steps(each)]
        assert len(outputs) == self.lanes.turns
        return {"turns": len(outputs), "content_bytes": sum(map(len, outputs))}

    def stored(self) -> int:
        return child.file_bytes(self.url.removeprefix("sqlite:///"))


if __name__ == "__main__":
    child.serve(Steps())
