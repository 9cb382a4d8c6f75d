"""`HoldfastSaver`: a LangGraph checkpointer over a store, for graphs that are invoked with and without await."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import holdfast
from holdfast.adapters.langgraph import payloads
from holdfast.adapters.langgraph.payloads import FORMAT, Group, StoredCheckpoint, StoredWrite, Typed
from holdfast.adapters.langgraph.ports import Driver, Port
from holdfast.adapters.langgraph.reads import all_places, ancestors, places_of, read_value, search
from holdfast.adapters.langgraph.serializers import StrictSerializer
from holdfast.adapters.langgraph.threads import Threads
from holdfast.adapters.langgraph.upkeep import Upkeep
from holdfast.adapters.langgraph.values import Draft, Found, Place
from holdfast.errors import Corrupt, InvalidRequest

COUNTERS = "counters_since_delta_snapshot"
DURABILITY = "__pregel_durability"


class Loaded(str):
    """The id of a checkpoint that a run starts from. Ids of checkpoints that a run makes itself are plain text."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        # As for plain text: a subclass of str decides what it equals.
        if isinstance(other, str) and type(other) not in (str, Loaded, Addressed):
            return NotImplemented
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Addressed(Loaded):
    """The id of a checkpoint that the caller named: a run that starts from it may branch off."""

    __slots__ = ()


class HoldfastSaver(BaseCheckpointSaver[Any]):
    """A checkpointer that keeps threads in a Holdfast store: `graph.compile(checkpointer=HoldfastSaver("agent.db"))`.

    `store` is a URL or a path, as for `holdfast.open_blocking`, or an open store. A store that was opened with
    `holdfast.open` serves the async methods only; every other one serves both kinds. A store that is opened here is
    closed by `close`, at the end of a `with` block, or when the saver is collected.

    `allow` are types of your own that may be loaded; see `StrictSerializer`. With `serde` you give another serialiser.

    Two runs that continue a thread from the same checkpoint at the same time: the second one raises `ThreadConflict`,
    which says whether to send its input again.
    """

    def __init__(
        self,
        store: str | holdfast.BlockingStore | holdfast.Store,
        *,
        serde: SerializerProtocol | None = None,
        allow: Iterable[type | tuple[str, ...]] = (),
    ) -> None:
        allowed = list(allow)
        if serde is not None and allowed:
            raise InvalidRequest("allow", "is for the serialiser of Holdfast: tell your own which types it may load")
        super().__init__(serde=serde or StrictSerializer(allow=allowed))
        self._driver = Driver(store, _field_of)
        self._threads = Threads()
        self._upkeep = Upkeep(self._threads)

    def close(self) -> None:
        """Close the store if it was opened here. Idempotent."""
        self._driver.close()

    def __enter__(self) -> HoldfastSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> HoldfastSaver:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------ reads

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the newest of its thread."""
        place, checkpoint_id = _place_of(config), _checkpoint_id(config)
        found = self._driver.run(lambda port: self._threads.get(port, place, checkpoint_id))
        return None if found is None else self._tuple(found, addressed=checkpoint_id is not None)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the newest of its thread."""
        place, checkpoint_id = _place_of(config), _checkpoint_id(config)
        found = await self._driver.start(lambda port: self._threads.get(port, place, checkpoint_id))
        return None if found is None else self._tuple(found, addressed=checkpoint_id is not None)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, the newest first: of a thread, or of all threads without a config."""
        for found in self._driver.run(lambda port: self._search(port, config, filter, before, limit)):
            yield self._tuple(found)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, the newest first: of a thread, or of all threads without a config."""
        for found in await self._driver.start(lambda port: self._search(port, config, filter, before, limit)):
            yield self._tuple(found)

    async def _search(
        self,
        port: Port,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Sequence[Found]:
        named: dict[str, Any] = {} if config is None else config.get("configurable", {})
        thread_id = None if named.get("thread_id") is None else _thread_id(named["thread_id"])
        namespace: str | None = named.get("checkpoint_ns")
        if thread_id is not None and namespace is not None:
            places = [Place(thread_id, namespace)]
        else:
            places = await (all_places(port) if thread_id is None else places_of(port, thread_id))

        def matches(checkpoint: StoredCheckpoint) -> bool:
            metadata = self._metadata(checkpoint)
            return all(metadata.get(key) == value for key, value in (filter or {}).items())

        return await search(
            port,
            [place for place in places if namespace is None or place.namespace == namespace],
            checkpoint_id=named.get("checkpoint_id"),
            before=None if before is None else _checkpoint_id(before),
            limit=None if limit is None else max(limit, 0),
            matches=matches,
        )

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes of channels since their last stored value, on the way to a checkpoint."""
        return self._driver.run(lambda port: self._history(port, config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes of channels since their last stored value, on the way to a checkpoint."""
        return await self._driver.start(lambda port: self._history(port, config, channels))

    async def _history(
        self, port: Port, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        place = _place_of(config)
        written: dict[str, list[list[PendingWrite]]] = {channel: [] for channel in channels}
        seeds: dict[str, Typed] = {}
        open_channels = dict.fromkeys(channels)
        if open_channels:
            async for group in ancestors(port, place, _checkpoint_id(config)):
                ordered = group.ordered()
                for channel in list(open_channels):
                    writes = [write for write in ordered if write.channel == channel]
                    written[channel].append([(one.task, channel, self._loaded((one.type, one.data))) for one in writes])
                    if _has_value(group, channel):
                        seed = await read_value(port, place, group, channel)
                        if seed is not None:
                            seeds[channel] = seed
                        del open_channels[channel]
                if not open_channels:
                    break
        return {
            channel: _history_of(
                [write for writes in reversed(written[channel]) for write in writes],
                [self._loaded(seeds[channel])] if channel in seeds else [],
            )
            for channel in channels
        }

    # ------------------------------------------------------------------------ writes

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. Idempotent; other content under the same id replaces it."""
        place, draft = _place_of(config), self._draft(config, checkpoint, metadata, new_versions)
        self._driver.run(lambda port: self._threads.put(port, place, draft))
        return _config_of(place, checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. Idempotent; other content under the same id replaces it."""
        place, draft = _place_of(config), self._draft(config, checkpoint, metadata, new_versions)
        await self._driver.start(lambda port: self._threads.put(port, place, draft))
        return _config_of(place, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store writes of a task on a checkpoint."""
        place, checkpoint_id, stored = self._writes(config, writes, task_id, task_path)
        self._driver.run(lambda port: self._threads.put_writes(port, place, checkpoint_id, stored))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store writes of a task on a checkpoint."""
        place, checkpoint_id, stored = self._writes(config, writes, task_id, task_path)
        await self._driver.start(lambda port: self._threads.put_writes(port, place, checkpoint_id, stored))

    def delete_thread(self, thread_id: str) -> None:
        """Erase a thread with its subgraphs."""
        self._driver.run(lambda port: self._upkeep.delete_thread(port, _thread_id(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """Erase a thread with its subgraphs."""
        await self._driver.start(lambda port: self._upkeep.delete_thread(port, _thread_id(thread_id)))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread. Idempotent: call it again after an interruption."""
        self._driver.run(lambda port: self._copy(port, source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread. Idempotent: call it again after an interruption."""
        await self._driver.start(lambda port: self._copy(port, source_thread_id, target_thread_id))

    async def _copy(self, port: Port, source: str, target: str) -> None:
        await self._upkeep.copy_thread(port, _thread_id(source), _thread_id(target))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace, or with the strategy `delete` none."""
        self._driver.run(lambda port: self._prune(port, thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace, or with the strategy `delete` none."""
        await self._driver.start(lambda port: self._prune(port, thread_ids, strategy))

    async def _prune(self, port: Port, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy not in ("keep_latest", "delete"):
            raise InvalidRequest("strategy", f"must be 'keep_latest' or 'delete', not {strategy!r}")
        prune = self._upkeep.prune if strategy == "keep_latest" else self._upkeep.delete_thread
        for thread_id in thread_ids:
            await prune(port, _thread_id(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Erase the checkpoints of runs. Reads every thread of the store."""
        self._driver.run(lambda port: self._upkeep.delete_runs(port, run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Erase the checkpoints of runs. Reads every thread of the store."""
        await self._driver.start(lambda port: self._upkeep.delete_runs(port, run_ids))

    def get_next_version(self, current: Any | None, channel: None) -> Any:  # noqa: ARG002 - of the interface
        """Return the version after one. Threads that came from another saver continue with versions as text."""
        if current is None:
            return 1
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}.{random.random():016}"  # noqa: S311 - not a secret
        return int(current) + 1

    # ------------------------------------------------------------------------ values

    def _dumped(self, field: str, value: Any) -> Typed:
        try:
            kind, data = self.serde.dumps_typed(value)
        except holdfast.HoldfastError:
            raise
        except Exception as error:
            raise InvalidRequest(field, f"the serialiser refuses a {type(value).__name__}: {error}") from error
        return kind, bytes(data)

    def _loaded(self, typed: Typed) -> Any:
        try:
            return self.serde.loads_typed(typed)
        except NotImplementedError as error:
            raise InvalidRequest(
                "serde", f"a stored value has the format {typed[0]!r}, which this serialiser does not load: {error}"
            ) from error
        except holdfast.HoldfastError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise Corrupt(
                "nodes",
                typed[0],
                f"a stored value does not decode ({type(error).__name__}): it is damaged, or was stored with another "
                "serialiser or key",
            ) from error

    def _draft(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Draft:
        values: dict[str, Any] = checkpoint["channel_values"]
        state, odd_state = payloads.split_plain(
            {key: value for key, value in checkpoint.items() if key not in ("id", "channel_values")}
        )
        described: dict[str, Any] = dict(get_checkpoint_metadata(config, metadata))
        if "parents" in described:
            described["parents"] = {namespace: str(parent) for namespace, parent in described["parents"].items()}
        if COUNTERS in described:
            described[COUNTERS] = {name: [*counts] for name, counts in described[COUNTERS].items()}
        plain, odd = payloads.split_plain(described)
        named: dict[str, Any] = config.get("configurable", {})
        parent: str | None = named.get("checkpoint_id")
        # A run stores its input first, unless it stores only its end.
        is_first = (described.get("source"), described.get("step")) == ("input", -1) or named.get(DURABILITY) == "exit"

        def value(channel: str) -> Typed:
            return self._dumped(f"channel_values.{channel}", values[channel])

        return Draft(
            id=checkpoint["id"],
            parent=None if parent is None else str(parent),
            state=state,
            typed_state={key: self._dumped(f"checkpoint.{key}", value) for key, value in odd_state.items()},
            metadata=plain,
            typed_metadata={key: self._dumped(f"metadata.{key}", value) for key, value in odd.items()},
            channels=list(values),
            versions=checkpoint["channel_versions"],
            fresh=frozenset(new_versions),
            value=value,
            # A fork copies a checkpoint beside itself, under the same parent.
            may_branch=isinstance(parent, Addressed) or described.get("source") == "fork",
            begins_run=parent is None or isinstance(parent, Loaded),
            begins_thread=parent is None and is_first,
            gist=self._gist_of([values.get(channel) for channel in new_versions]),
        )

    def _gist_of(self, values: Sequence[Any]) -> str:
        """Return the first gist of some values. Another serialiser may encrypt them: then nothing of them is shown."""
        if type(self.serde) not in (StrictSerializer, JsonPlusSerializer):
            return ""
        return next((gist for gist in (_gist(value) for value in values) if gist), "")

    def _writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> tuple[Place, str, Sequence[StoredWrite]]:
        checkpoint_id = _checkpoint_id(config)
        if checkpoint_id is None:
            raise InvalidRequest("config", "names no checkpoint_id, which writes are stored on")
        stored: dict[int, StoredWrite] = {}
        for index, (channel, value) in enumerate(writes):
            kind, data = self._dumped(f"writes[{channel!r}]", value)
            # Channels of LangGraph's own have one place for each task. The last write counts.
            place = WRITES_IDX_MAP.get(channel, index)
            stored[place] = StoredWrite(FORMAT, channel, kind, data, task_path, task_id, place)
        return _place_of(config), checkpoint_id, [*stored.values()]

    def _metadata(self, checkpoint: StoredCheckpoint) -> dict[str, Any]:
        typed = {key: self._loaded(value) for key, value in checkpoint.typed_metadata.items()}
        return {**checkpoint.metadata, **typed}

    def _tuple(self, found: Found, *, addressed: bool = True) -> CheckpointTuple:
        stored = found.checkpoint
        values: dict[str, Any] = {}
        for channel in (*stored.values, *stored.components):
            typed = found.value(channel)
            assert typed is not None
            values[channel] = self._loaded(typed)
        checkpoint: Any = {
            **stored.state,
            **{key: self._loaded(typed) for key, typed in stored.typed_state.items()},
            "id": stored.id,
            "channel_values": values,
        }
        metadata: Any = self._metadata(stored)
        return CheckpointTuple(
            config=_config_of(found.place, Addressed(stored.id) if addressed else Loaded(stored.id)),
            checkpoint=checkpoint,
            metadata=metadata,
            parent_config=None if stored.parent is None else _config_of(found.place, stored.parent),
            pending_writes=[(one.task, one.channel, self._loaded((one.type, one.data))) for one in found.writes],
        )


def _place_of(config: RunnableConfig) -> Place:
    named: dict[str, Any] = config.get("configurable", {})
    if "thread_id" not in named:
        raise InvalidRequest("config", "names no thread_id: give {'configurable': {'thread_id': ...}}")
    return Place(_thread_id(named["thread_id"]), str(named.get("checkpoint_ns") or ""))


def _field_of(field: str) -> str:
    """Return LangGraph's name of a field of the store."""
    if field in ("session_id", "parent"):
        return "thread_id"
    return field.replace("checkpoint.", "channel_values.", 1) if field.startswith("checkpoint.") else field


def _thread_id(value: object) -> str:
    """Return the id of a thread as text: LangGraph's own savers take numbers and UUIDs, too."""
    if value is None or not str(value).strip():
        raise InvalidRequest("thread_id", "is empty: give each conversation its own id")
    return str(value)


def _checkpoint_id(config: RunnableConfig) -> str | None:
    found: str | None = config.get("configurable", {}).get("checkpoint_id")
    return None if not found else str(found)


def _config_of(place: Place, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": place.thread_id,
            "checkpoint_ns": place.namespace,
            "checkpoint_id": checkpoint_id,
        }
    }


def _has_value(group: Group, channel: str) -> bool:
    checkpoint = group.checkpoint
    return checkpoint is not None and (channel in checkpoint.values or channel in checkpoint.components)


def _history_of(writes: Sequence[PendingWrite], seed: Sequence[Any]) -> DeltaChannelHistory:
    history: DeltaChannelHistory = {"writes": [*writes]}
    if seed:
        history["seed"] = seed[0]
    return history


def _gist(value: Any) -> str:
    """Return the beginning of the last message in a list of messages, "" for any other value."""
    parts: list[Any] = cast("Any", value) if isinstance(value, list) else []
    last: object = parts[-1] if parts else None
    if not isinstance(last, BaseMessage):
        return ""
    calls = [f"call {call['name']}" for call in getattr(last, "tool_calls", ())]
    content = last.content if isinstance(last.content, str) else last.text
    text = " ".join(f"{last.type}: {' '.join([content, *calls])}".split())[: payloads.GIST_CHARACTERS]
    return text.encode(errors="replace").decode()
