"""The table of commands: where the code of each is, and its description. Code is loaded when a command is called."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple

import click


class Command(NamedTuple):
    """`where` is module:function below penstock.cli; `about` is the first line of its help."""

    where: str
    about: str


# section -> command name -> command, in the order of the help
COMMANDS: dict[str, dict[str, Command]] = {
    "Tasks": {
        "put": Command("put:put", "Put a task, or one task per line."),
        "take": Command("take:take", "Take the next task and hold it for some time."),
        "ack": Command("settle:ack", "Acknowledge a taken task: it is done and leaves its tube."),
        "fail": Command("settle:fail", "Fail a taken task for good: it leaves its tube."),
        "release": Command("settle:release", "Release a taken task to its old place."),
        "touch": Command("settle:touch", "Extend the lease of a taken task."),
        "bury": Command("settle:bury", "Set a task aside until it is kicked."),
        "kick": Command("settle:kick", "Make buried tasks ready again."),
        "retry": Command("settle:retry", "Make a task ready now, in any state."),
        "cancel": Command("settle:cancel", "Cancel a task, even while it runs."),
        "delete": Command("settle:delete", "Remove a task, in any state."),
        "wait": Command("take:wait", "Wait until the task with an address or an id has ended."),
        "mq": Command("mq:mq", "Reliable queues: push, pop, ack, recover, inspect."),
    },
    "Inspecting": {
        "ls": Command("query_commands:ls", "List the tubes, or the tasks of one."),
        "tubes": Command("query_commands:tubes", "List the tubes and what is in them."),
        "tasks": Command("query_commands:tasks", "List the tasks of a tube."),
        "peek": Command("query_commands:peek", "Show one task."),
        "why": Command("query_commands:why", "Explain why a task is not running."),
        "stats": Command("query_commands:stats", "Show the counters of a tube."),
        "groups": Command("query_commands:groups", "List the live groups of a tube; start or cancel one."),
        "schedules": Command("schedules_command:schedules", "List the schedules that workers run; run or pause one."),
        "sessions": Command("query_commands:sessions", "List the sessions and the tasks they hold."),
        "top": Command("top:top", "Watch depths and rates of the tubes, every second."),
    },
    "Tubes": {
        "create": Command("tube_admin:create", "Create a tube."),
        "alter": Command("tube_admin:alter", "Change options of a tube, for what is put or taken from now on."),
        "pause": Command("tube_admin:pause", "Pause a tube: takes get nothing, puts still work."),
        "resume": Command("tube_admin:resume", "Resume a paused tube."),
        "truncate": Command("tube_admin:truncate", "Remove every task of a tube."),
        "drop": Command("tube_admin:drop", "Remove a tube with all its tasks."),
    },
    "Running": {
        "worker": Command("worker_command:worker", "Run the handlers of an app until SIGTERM or Ctrl-C."),
        "serve": Command("serve_command:serve", "Serve the store to other programs and hosts."),
        "bridge": Command("bridge_command:bridge", "Move messages from a RabbitMQ queue to a tube, or back."),
        "token": Command("serve_command:token", "Make a token, add its hash to FILE, and print it."),
        "demo": Command("demo:demo", "Show penstock at work: producers, workers and a kill -9, every task counted."),
        "completion": Command("completion:completion", "Print the completion script of a shell."),
    },
    "The store": {
        "doctor": Command("doctor:doctor", "Examine the store: version, durability, speed, backlog, what to fix."),
        "check": Command("maintenance:check", "Cross-check everything stored; --repair fixes it."),
        "rebuild": Command("maintenance:rebuild", "Rebuild the index of a pool from its database."),
        "migrate": Command("maintenance:migrate", "Update the store's schema and report the changes."),
        "export": Command("transfer_commands:export_tube", "Write a tube to a file."),
        "import": Command("transfer_commands:import_tube", "Read a tube from a file."),
        "move": Command("transfer_commands:move", "Move tubes to another store while programs use them."),
        "bench": Command("bench:bench", "Measure how many tasks per second this store puts, takes and acks."),
    },
}
_BY_NAME = {name: command for section in COMMANDS.values() for name, command in section.items()}


class Commands(click.Group):
    """The group of commands. Only the module of the called command is loaded."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Every name, in the order of the help."""
        return list(_BY_NAME)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of that name."""
        if name not in _BY_NAME:
            return None
        module, _, function = _BY_NAME[name].where.partition(":")
        command = getattr(import_module(f"penstock.cli.{module}"), function)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. The error for an unknown name suggests the nearest one, without loading the commands."""
        name = args[0]
        if name not in _BY_NAME and not name.startswith("-") and not context.resilient_parsing:
            near = get_close_matches(name, _BY_NAME, n=1)
            context.fail(f"there is no command {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(section, " ".join(commands)) for section, commands in COMMANDS.items()])

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Print where to find more help."""
        formatter.write_paragraph()
        formatter.write_text("penstock COMMAND --help explains a command, with examples.")
