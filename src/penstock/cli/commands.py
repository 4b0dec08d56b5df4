"""Every command by name: where its code is, loaded when it is called, and one line on what it does."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple

import click


class Command(NamedTuple):
    """`where` is module:function below penstock.cli; `about` is the first line of its help."""

    where: str
    about: str


# section -> its commands, in the order of the help
COMMANDS: dict[str, dict[str, Command]] = {
    "Tasks": {
        "put": Command("put:put", "Put a task, or one for each line."),
        "take": Command("take:take", "Take the next task, and hold it for a while."),
        "ack": Command("settle:ack", "A taken task is done: it leaves its tube."),
        "fail": Command("settle:fail", "A taken task failed for good: it leaves its tube."),
        "release": Command("settle:release", "Give taken tasks back, at their old place."),
        "touch": Command("settle:touch", "More time for a taken task."),
        "bury": Command("settle:bury", "Set a task aside until it is kicked."),
        "kick": Command("settle:kick", "Buried tasks are ready again."),
        "retry": Command("settle:retry", "Let a task run again now, whoever holds it."),
        "delete": Command("settle:delete", "Remove a task, whatever its state."),
        "wait": Command("take:wait", "Wait until the task with an address has ended."),
        "mq": Command("mq:mq", "Reliable queues: push, pop, ack, recover, inspect."),
    },
    "Looking": {
        "ls": Command("queries:ls", "List the tubes, or the tasks of one."),
        "tubes": Command("queries:tubes", "List the tubes and what is in them."),
        "tasks": Command("queries:tasks", "List the tasks of a tube."),
        "peek": Command("queries:peek", "Show one task."),
        "why": Command("queries:why", "Say why a task is not running."),
        "stats": Command("queries:stats", "Show the counters of a tube."),
        "groups": Command("queries:groups", "List the live groups of a tube; start or cancel one."),
        "schedules": Command("schedules:schedules", "List the schedules that workers run; run or pause one."),
        "sessions": Command("queries:sessions", "List who takes tasks, and what they hold."),
        "top": Command("top:top", "Watch the tubes: depths and rates, every second."),
    },
    "Tubes": {
        "create": Command("tube_admin:create", "Create a tube."),
        "pause": Command("tube_admin:pause", "Takes get nothing from now on; puts go on."),
        "resume": Command("tube_admin:resume", "End a pause."),
        "truncate": Command("tube_admin:truncate", "Remove every task of a tube."),
        "drop": Command("tube_admin:drop", "Remove a tube with all its tasks."),
    },
    "Running": {
        "worker": Command("worker:worker", "Run the handlers of an app until SIGTERM or Ctrl-C."),
        "serve": Command("serve:serve", "Serve the store to other programs and hosts."),
        "token": Command("token:token", "Make a token, add its hash to FILE, and print it."),
        "demo": Command("demo:demo", "Show penstock at work: producers, workers and a kill -9, every task counted."),
        "completion": Command("completion:completion", "Print what makes a shell complete commands and options."),
    },
    "The store": {
        "doctor": Command("doctor:doctor", "Look at the store: version, durability, speed, what waits, what to fix."),
        "check": Command("maintenance:check", "Cross-check everything stored, and mend it with --repair."),
        "rebuild": Command("maintenance:rebuild", "Build the index of a pool anew from its database."),
        "migrate": Command("maintenance:migrate", "Bring the store's schema up to date, and say what that took."),
        "export": Command("transfer_commands:export_tube", "Write a tube into a file."),
        "import": Command("transfer_commands:import_tube", "Read a tube from a file."),
        "move": Command("transfer_commands:move", "Move tubes to another store, while programs use them."),
        "bench": Command("bench:bench", "Measure how many tasks a second this store puts, takes and acks."),
    },
}
_BY_NAME = {name: command for section in COMMANDS.values() for name, command in section.items()}


class Commands(click.Group):
    """The group of commands. Only the module of the one that is called is loaded."""

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
        """As click does; an unknown name is answered with the nearest, which click looks for among loaded ones."""
        name = args[0]
        if name not in _BY_NAME and not name.startswith("-") and not context.resilient_parsing:
            near = get_close_matches(name, _BY_NAME, n=1)
            context.fail(f"there is no command {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The names by section, without loading them: all of it on one screen."""
        with formatter.section("Commands"):
            formatter.write_dl([(section, " ".join(commands)) for section, commands in COMMANDS.items()])

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Where to read on."""
        formatter.write_paragraph()
        formatter.write_text("penstock COMMAND --help shows one of them, with examples.")
