"""`module:app` to the App it names. The one place where a worker imports by name, and the name is the operator's."""

from __future__ import annotations

import importlib
import os
import sys

from penstock.app.app import App
from penstock.core.names import shown
from penstock.errors import BadValue


def load_app(target: str) -> App:
    """Import the module, as if from the current folder, and give its app; BadValue when it is not there."""
    module_name, _, attribute = target.partition(":")
    attribute = attribute or "app"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # a module that the app's own module asks for
        raise BadValue(f"module {shown(module_name)} is not found from {os.getcwd()}: give module:app") from None
    except ValueError:
        raise BadValue(f"{shown(target)} names no module: give module:app") from None
    found = getattr(module, attribute, None)
    if not isinstance(found, App):
        apps = [f"{module_name}:{name}" for name, value in vars(module).items() if isinstance(value, App)]
        remedy = f"give {' or '.join(apps)}" if apps else "make one there, app = penstock.App(url)"
        raise BadValue(f"{module_name} has no App named {attribute}: {remedy}")
    return found
