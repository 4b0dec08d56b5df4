"""Hooks of the documentation site: pages from outside of docs/, the HTTP reference, and nav entries with a `*`.

Pages link to files of the repository as GitHub does. The site has no other files than pages, so a linked source file
becomes a page that shows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from penstock.server.http.openapi import document
from penstock.server.http.routes import OPERATIONS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Pages at the top of the repository, and their names in the site.
OUTSIDE = {
    "README.md": "index.md",
    **{f"{name}.md": f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "SECURITY")},
}
_LINK = re.compile(r"(\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")
_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n", re.DOTALL | re.MULTILINE)


class PlainReturns(griffe.Extension):
    """Show a verb of penstock as callers see it: `Operation[bool]` is for penstock.aio, a call returns bool."""

    def on_function_instance(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Take the type out of Operation[…]."""
        returns = func.returns
        if isinstance(returns, griffe.ExprSubscript) and returns.canonical_name == "Operation":
            func.returns = returns.slice


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand the `*` of nav entries."""
    config.nav = [_expanded(entry) for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the top of the repository, and the source files that pages link to."""
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    linked = {path for page in files.documentation_pages() for path in _linked_sources(page)}
    for path in sorted(linked - {ROOT / name for name in OUTSIDE}):
        name = path.relative_to(ROOT)
        text = f"# {name}\n\n``````{path.suffix[1:]}\n{path.read_text()}``````\n"
        files.append(File.generated(config, f"source/{name}.md", content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the pages of the site, fill in the HTTP reference, and leave out what the site cannot draw."""
    source = page.file.abs_src_path
    if source is None:
        return markdown
    markdown = markdown.replace("<!-- operations -->", http_reference()) if "operations -->" in markdown else markdown
    # The theme draws mermaid by a script from the network; the table below the diagram says the same.
    return _LINK.sub(lambda link: _moved(link, Path(source), page.file.src_uri), _DIAGRAM.sub("", markdown))


def http_reference() -> str:
    """Every operation of the OpenAPI document, by path, with its parameters, body and answers."""
    described = document(OPERATIONS)
    schemas = described["components"]["schemas"]
    parts = [
        _operation(method.upper(), path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    shown = {name: schema for name, schema in sorted(schemas.items()) if "properties" in schema}
    parts += ["## Types", *(f"### {name}\n\n{_fields(schema)}" for name, schema in shown.items())]
    return "\n\n".join(parts)


def _expanded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _expanded(below) for title, below in entry.items()}
    if isinstance(entry, list):
        return [page for each in entry for page in (_matching(each) if isinstance(each, str) else [_expanded(each)])]
    return entry


def _matching(pattern: str) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    found = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob(f"{pattern}.md"))
    return sorted(found, key=lambda name: not name.endswith("README.md"))


def _targets(text: str, source: Path) -> Iterator[Path]:
    for _, target, _ in _LINK.findall(text):
        if ":" not in target:
            yield (source.parent / target).resolve()


def _linked_sources(page: File) -> Iterator[Path]:
    if page.abs_src_path:
        for path in _targets(Path(page.abs_src_path).read_text(), Path(page.abs_src_path)):
            if path.is_file() and path.is_relative_to(ROOT) and not path.is_relative_to(DOCS):
                yield path


def _moved(link: re.Match[str], source: Path, uri: str) -> str:
    text, target, anchor = link[1], link[2], link[3] or ""
    path = (source.parent / target).resolve()
    if ":" in target or not path.is_relative_to(ROOT) or not path.exists():
        return link[0]
    if path.is_dir():
        return text[1:-1]
    name = str(path.relative_to(ROOT))
    if path.is_relative_to(DOCS):
        name = str(path.relative_to(DOCS))
    elif name in OUTSIDE:
        name = OUTSIDE[name]
    else:
        name = f"source/{name}.md"
    return f"{text}({os.path.relpath(name, Path(uri).parent)}{anchor})"


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"## {method} {path}", f"{operation['summary']} {operation.get('description', '')}".strip()]
    rows = [
        f"- query `{each['name']}`: {_type(each['schema'])}"
        for each in operation["parameters"]
        if each["in"] == "query"
    ]
    if body := _content(operation.get("requestBody", {})):
        rows.append(f"- body: {body}")
    rows += [
        f"- {status}: {_content(answer) or answer['description']}"
        for status, answer in sorted(operation["responses"].items())
        if status != "default"
    ]
    return "\n\n".join([*parts, "\n".join(rows)])


def _content(described: dict[str, Any]) -> str:
    return ", ".join(_type(each["schema"]) or media for media, each in described.get("content", {}).items())


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        f"| `{name}`{'' if name in required else ' (optional)'} | {_type(field)} |"
        for name, field in schema["properties"].items()
    ]
    return "\n".join(["| field | type |", "|---|---|", *rows])


def _type(schema: dict[str, Any]) -> str:
    """Name the type of a JSON schema, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}" if schema.get("items") else "array"
    return str(schema.get("type", "any"))
