"""The routes about routers.

Owns what these answers look like; the engine decides what is in them.
"""

from __future__ import annotations

from functools import partial

from everlog.errors import RouterCycle, RouterIncompatible, RouterNotFound
from everlog.server.app import App, Call, Route, query_flag
from everlog.server.auth import Key, Scope, allows_name
from everlog.server.bodies import decode
from everlog.server.errors import ApiError
from everlog.server.pages import cursor_behind, name_in_cursor, page_size
from everlog.server.router_wait import when_forwarded
from everlog.topics.routing.definitions import RouterConfig, RouterState


class RouterRoutes:
    """Handlers of everything below /v0/routers."""

    def __init__(self, app: App) -> None:
        self._app = app
        app.add("GET", "/v0/routers", Route(Scope.READ, self.list_routers))
        app.add("PUT", "/v0/routers/:name", Route(Scope.ADMIN, self.put_router))
        app.add("GET", "/v0/routers/:name", Route(Scope.READ, self.get_router))
        app.add("DELETE", "/v0/routers/:name", Route(Scope.DELETE, self.delete_router))

    def put_router(self, call: Call) -> None:
        """PUT /v0/routers/:router."""
        config = decode(call, RouterConfig)
        for name in (config.source, config.dest):
            _check_allowed(call.key, name)
        app, engine = self._app, self._app.ready_engine()
        self._check_existing(call)
        app.routers_of_keys.check(call.key, (call.name,), engine.has_router)
        absent = [name for name in (config.source, config.dest) if not engine.has_topic(name)]
        app.topics_of_keys.check(call.key, absent, engine.has_topic)
        try:
            put = engine.put_router(call.name, config)
        except RouterCycle as error:
            raise _cycle(call, error) from None
        except RouterIncompatible as error:
            raise _incompatible(call.key, error) from None
        for name in absent:
            app.topics_of_keys.created(call.key, name)
        if put.created:
            app.routers_of_keys.created(call.key, call.name)
        answer = {"router": put.state.router, "created": put.created, **_definition(put.state)}
        app.answer_with(call, put.commit, answer, 201 if put.created else 200)

    def _check_existing(self, call: Call) -> None:
        """Refuse to change a router, if there is one, that has an end which the key may not use."""
        for state in self._app.ready_engine().routers(call.name, limit=1):
            if state.router == call.name:
                _check_ends(call.key, state)

    def get_router(self, call: Call) -> None:
        """GET /v0/routers/:router."""
        state = self._find(call)
        when_forwarded(self._app, call, state.dest, partial(self._answer_router, call))

    def _answer_router(self, call: Call) -> None:
        state = self._find(call)
        answer = {"router": state.router, **_definition(state), "forwarded_total": state.forwarded_total}
        self._app.answer(call, self._app.rendered(call, {**answer, **_paused(state)}))

    def _find(self, call: Call) -> RouterState:
        try:
            state = self._app.ready_engine().router(call.name)
        except RouterNotFound as error:
            raise ApiError(404, error.code, str(error), {"router": call.name}) from None
        _check_ends(call.key, state)
        return state

    def list_routers(self, call: Call) -> None:
        """GET /v0/routers."""
        query = call.query()
        size = page_size(query.get("page_size"))
        source, dest = query.get("source"), query.get("dest")
        after, is_shown = name_in_cursor(query.get("cursor")), partial(allows_name, call.key)
        engine = self._app.ready_engine()
        found = engine.routers(query.get("prefix", ""), source, dest, after, size + 1, is_shown)
        shown, has_lag = found[:size], query_flag(query, "lag", False)
        answer: dict[str, object] = {
            "routers": [
                {
                    "router": state.router,
                    "source": state.source,
                    "dest": state.dest,
                    "guarantee": state.guarantee,
                    "forwarded_total": state.forwarded_total,
                    **({"lag": state.lag} if has_lag else {}),
                    **_paused(state),
                }
                for state in shown
            ]
        }
        if len(found) > size:
            answer["next_cursor"] = cursor_behind(shown[-1].router)
        self._app.answer(call, self._app.rendered(call, answer))

    def delete_router(self, call: Call) -> None:
        """DELETE /v0/routers/:router."""
        engine = self._app.ready_engine()
        self._check_existing(call)
        deleted = engine.delete_router(call.name)
        self._app.routers_of_keys.deleted(call.name)
        self._app.answer_with(call, deleted.commit, {"router": call.name, "deleted": deleted.deleted})


def _definition(state: RouterState) -> dict[str, object]:
    return {
        "source": state.source,
        "dest": state.dest,
        "preserve_node": state.preserve_node,
        "preserve_tag": state.preserve_tag,
        "filter": state.filter,
        "allow_cycle": state.allow_cycle,
        "guarantee": state.guarantee,
    }


def _paused(state: RouterState) -> dict[str, object]:
    """Said only of a router that is paused."""
    seq = {"corrupt_seq": state.corrupt_seq} if state.corrupt_seq else {}
    return {"paused": True, **seq} if state.paused else {}


def _incompatible(key: Key | None, error: RouterIncompatible) -> ApiError:
    detail: dict[str, object] = {"reason": error.reason}
    message = str(error)
    if error.reason == "router_repoint_forbidden":
        detail["existing_source"], detail["existing_dest"] = error.existing
    elif not all(allows_name(key, name) for name in (error.router, *error.existing)):
        message = (
            f"topic {error.existing[1]!r} already gets the records of another topic through a router that "
            "this key may not see; those of two sources would have no common order, use another destination"
        )
    return ApiError(409, "topic_exists_incompatible", message, detail)


def _cycle(call: Call, error: RouterCycle) -> ApiError:
    shown = [name for name in error.cycle if allows_name(call.key, name)]
    message = str(error)
    if len(shown) < len(error.cycle):
        message = (
            f"router {call.name!r} would close a cycle through topics that this key may not see; "
            "leave it open, or set allow_cycle"
        )
    return ApiError(409, "router_cycle", message, {"cycle": shown})


def _check_ends(key: Key | None, state: RouterState) -> None:
    """Refuse a router with an end that the key may not use, without naming that topic."""
    if not (allows_name(key, state.source) and allows_name(key, state.dest)):
        message = f"router {state.router!r} has a topic at an end that this key may not use"
        raise ApiError(403, "forbidden", message, {"router": state.router})


def _check_allowed(key: Key | None, name: str) -> None:
    if not allows_name(key, name):
        raise ApiError(403, "forbidden", "this key may not use this topic", {"topic": name})
