"""stub"""

from __future__ import annotations
from starlette.routing import BaseRoute
from penstock.server.http.operations import Server
from penstock.server.http.sampler import Sampler


def page_routes(server: Server, sampler: Sampler) -> list[BaseRoute]:
    """stub"""
    return []
