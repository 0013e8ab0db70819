"""The documents of the API say what the code says, and the committed files are these documents."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from everlog.server.errors import _STATUS
from tests.support.api_documents import codes_in, references_in, refusals_in, resolved
from tools.reference_pages.__main__ import main
from tools.reference_pages.asyncapi import asyncapi
from tools.reference_pages.documents import DOCUMENTS_OF_SERVER, documents, outdated, registered_routes
from tools.reference_pages.error_codes import ERROR_CODES, OF_EVERY_REQUEST, SOCKET_CODES
from tools.reference_pages.field_texts import BOUNDS, COMMON, SPECIAL
from tools.reference_pages.openapi import openapi, operations_of, undescribed
from tools.reference_pages.operations import OPERATIONS

REPOSITORY = Path(__file__).resolve().parents[3]
REFERENCE = REPOSITORY / "docs" / "reference"
SERVER = REPOSITORY / "src" / "everlog" / "server"
EVERYTHING = [(operation.method, operation.path) for operation in OPERATIONS]
DOCUMENTS: dict[str, dict[str, Any]] = {"openapi": openapi(EVERYTHING), "asyncapi": asyncapi(EVERYTHING)}


def test_the_committed_documents_are_what_the_code_says() -> None:
    stale = [path.name for path in outdated(REFERENCE, documents())]
    served = {name: documents()[name] for name in DOCUMENTS_OF_SERVER}
    stale += [path.name for path in outdated(SERVER / "documents", served)]
    assert stale == [], f"{stale} are out of date; run: python -m tools.reference_pages"


def test_every_route_of_the_server_is_described() -> None:
    assert undescribed(registered_routes()) == []
    assert undescribed([("GET", "/v0/nothing")]) == [("GET", "/v0/nothing")]


def test_a_route_that_the_server_does_not_have_is_not_in_the_document() -> None:
    routes = [("GET", "/v0/topics"), ("GET", "/v0/nothing")]
    assert list(openapi(routes)["paths"]) == ["/v0/topics"]
    assert [operation.id for operation in operations_of(routes)] == ["listTopics"]
    assert asyncapi(routes)["channels"] == {}


def test_operations_have_names_of_their_own() -> None:
    ids = [operation.id.lower() for operation in OPERATIONS]
    assert len(ids) == len(set(ids))
    assert len(EVERYTHING) == len(set(EVERYTHING))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_reference_leads_somewhere(name: str) -> None:
    references = set(references_in(DOCUMENTS[name]))
    assert len(references) > 10
    for reference in references:
        resolved(DOCUMENTS[name], reference)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_field_of_every_object_is_explained(name: str) -> None:
    schemas = DOCUMENTS[name]["components"]["schemas"]
    silent = [
        f"{shape}.{field}"
        for shape, schema in schemas.items()
        for field, described in schema["properties"].items()
        if not described.get("description")
    ]
    assert silent == []
    assert all(schema["description"] for schema in schemas.values())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_object_is_described_that_nothing_refers_to(name: str) -> None:
    document = DOCUMENTS[name]
    used = {reference.rpartition("/")[2] for reference in references_in(document)}
    assert set(document["components"]["schemas"]) - used == set()


def test_no_words_are_kept_for_fields_that_do_not_exist() -> None:
    schemas = {
        **DOCUMENTS["asyncapi"]["components"]["schemas"],
        **DOCUMENTS["openapi"]["components"]["schemas"],
    }
    fields = {field for schema in schemas.values() for field in schema["properties"]}
    assert set(COMMON) - fields == set()
    for table in (SPECIAL, BOUNDS):
        for shape, words in table.items():
            assert set(words) - set(schemas[shape]["properties"]) == set(), shape


def test_every_error_of_the_server_is_in_the_table_with_its_status() -> None:
    sources = [path.read_text(encoding="utf-8") for path in SERVER.glob("*.py")]
    raised = {pair for source in sources for pair in (*codes_in(source), *refusals_in(source))}
    raised |= {(status, kind.code) for kind, status in _STATUS.items()}
    listed = [(row.status, row.code) for row in ERROR_CODES]
    assert len(listed) == len(set(listed))
    assert {pair for pair in raised if pair[1] not in SOCKET_CODES} - set(listed) == set()
    assert {(404, "not_found"), (414, "invalid_request"), (413, "payload_too_large")} <= raised
    assert set(listed) >= OF_EVERY_REQUEST


def test_every_code_belongs_to_an_operation() -> None:
    own = {code for operation in OPERATIONS for code in operation.codes} | {
        code for _, code in OF_EVERY_REQUEST
    }
    assert {row.code for row in ERROR_CODES} - own == {"method_not_allowed"}  # no operation: wrong methods
    assert own - {row.code for row in ERROR_CODES} == set()


def test_every_success_and_error_of_an_operation_has_words_and_a_body() -> None:
    document = DOCUMENTS["openapi"]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            for status, response in operation["responses"].items():
                described = resolved(document, response["$ref"]) if "$ref" in response else response
                assert isinstance(described, dict)
                assert described["description"], (path, method, status)
                assert status == "101" or described["content"], (path, method, status)


def test_the_page_has_a_section_for_every_route_and_its_links_lead_there() -> None:
    page = documents()["http.md"]
    for operation in operations_of(registered_routes()):
        assert f"`{operation.method} {operation.template}`\n" in page
    anchors = set(re.findall(r"\{ #(\S+) \}", page))
    anchors |= {
        heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ ([\w ]+)$", page, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) - anchors == set()


def test_the_command_writes_what_has_changed_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7
    assert json.loads((tmp_path / "openapi.json").read_text())["openapi"] == "3.1.0"
    (tmp_path / "http.md").write_text("old")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'http.md'}\n"
    assert outdated(tmp_path, documents()) == []
    assert main([str(tmp_path / "nowhere")]) == 2
