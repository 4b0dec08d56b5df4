"""Every file in deploy/ is read by its own tool or a strict schema, and its penstock commands exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml  # type: ignore[import-untyped]

import penstock
from penstock.app.app import App
from penstock.cli.main import cli
from penstock.server.http import metrics
from penstock.server.http.sampler import read_sample
from penstock.worker.worker import Worker
from penstock.worker.worker_metrics import Meter
from tests.servers.base import find

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCHEMAS = Path(__file__).parent / "schemas"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
MANIFESTS = [
    (file.name, document)
    for file in sorted(DEPLOY.glob("kubernetes/*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]
COMPOSE = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana/penstock.json").read_text())


def exec_start(unit: Path) -> str:
    """The command of a systemd unit."""
    [line] = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    return line.removeprefix("ExecStart=")


def commands() -> Iterator[tuple[str, list[str]]]:
    """The words of every penstock command in deploy/, by file and line."""
    for unit in UNITS:
        yield unit.name, shlex.split(exec_start(unit).replace("${PENSTOCK_APP}", "shop:app").replace("%i", "9001"))[1:]
    for name, service in COMPOSE["services"].items():
        if service["image"].startswith("penstock:"):
            yield f"compose {name}", service["command"]
    for name, document in MANIFESTS:
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            yield name, container["args"]


@pytest.mark.parametrize(
    ("where", "words"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_program_knows_every_command(where: str, words: list[str]) -> None:
    command = cli.get_command(cli.make_context("penstock", ["ls"]), words[0])
    assert command is not None
    with command.make_context(words[0], words[1:]) as context:
        grace = context.params.get("grace")
    assert words[0] != "worker" or grace is not None


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text().replace("/srv/penstock/.venv/bin/penstock", str(Path(sys.executable).with_name("penstock")))
    name = unit.name.replace("@", "@9001")
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        [find("systemd-analyze", "systemd", ()), "verify", "--man=no", str(tmp_path / name)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    own = [line for line in (done.stdout + done.stderr).splitlines() if name in line]
    assert (done.returncode, own) == (0, [])


def test_systemd_units_wait_longer_than_the_program_needs_to_stop() -> None:
    for unit in UNITS:
        parser = RawConfigParser(strict=False)
        parser.read_string(unit.read_text())
        stop = int(parser["Service"]["TimeoutStopSec"])
        grace = re.search(r"--grace (\d+)", exec_start(unit))
        assert stop >= (5 if grace is None else int(grace[1])) + 5


@pytest.mark.parametrize(("name", "document"), MANIFESTS, ids=[f"{name} {each['kind']}" for name, each in MANIFESTS])
def test_manifests(name: str, document: dict[str, Any]) -> None:
    schemas = json.loads((SCHEMAS / "kubernetes.json").read_text())
    schema = {**schemas[document["kind"]], "$defs": schemas["$defs"]}
    assert [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(document)] == []
    if document["kind"] == "Deployment":
        pod = document["spec"]["template"]
        assert document["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        mounted = {mount["name"] for each in pod["spec"]["containers"] for mount in each["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}
        [grace] = re.findall(r"--grace=(\d+)", str(pod)) or ["5"]
        assert pod["spec"]["terminationGracePeriodSeconds"] >= int(grace) + 10


def test_names_that_manifests_refer_to() -> None:
    names = {(document["kind"], document["metadata"]["name"]) for _, document in MANIFESTS}
    secrets = set(re.findall(r"'(?:secretName|secretKeyRef)': (?:{'name': )?'(\w+)'", str(MANIFESTS)))
    assert {("Secret", name) for name in secrets} == {each for each in names if each[0] == "Secret"}
    [scaled] = [document for _, document in MANIFESTS if document["kind"] == "ScaledObject"]
    assert ("Deployment", scaled["spec"]["scaleTargetRef"]["name"]) in names


def test_compose() -> None:
    schema = json.loads((SCHEMAS / "compose.json").read_text())
    assert [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(COMPOSE)] == []
    folder = DEPLOY / "docker"
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", ())) <= set(COMPOSE["services"])
        if "build" in service:
            assert (folder / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (folder / source).is_dir()


KNOWN = set("FROM WORKDIR RUN COPY ENV USER VOLUME EXPOSE STOPSIGNAL ENTRYPOINT CMD".split())


def test_the_steps_of_the_dockerfile(tmp_path: Path) -> None:
    """Runs without docker: files are copied into a folder and commands run there, without the drivers."""
    steps = [
        line.partition(" ") for line in (DEPLOY / "docker/Dockerfile").read_text().splitlines() if line[:1].isupper()
    ]
    assert {name for name, _, _ in steps} <= KNOWN
    images = [rest for name, _, rest in steps if name == "FROM"]
    assert all(re.fullmatch(r"\S+:[0-9][\w.-]*( AS \w+)?", image) for image in images), "a version, and not the latest"
    assert [rest for name, _, rest in steps if name == "USER"][-1] != "root"
    (tmp_path / "src").mkdir()
    for name, _, rest in steps:
        *sources, target = rest.split()
        if name == "COPY" and not sources[0].startswith("--from"):
            for source in sources:
                place = tmp_path / "src" / (source if target == "./" else target)
                (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, place)
    [install] = [rest for name, _, rest in steps if name == "RUN" and "pip install" in rest]
    words = shlex.split(install)
    assert words[:2] == ["/opt/penstock/bin/pip", "install"]
    assert words[-1] == "/src[all]"
    pip = [
        sys.executable,
        "-m",
        *("pip install --quiet --no-index --no-deps --no-build-isolation --no-compile --target".split()),
    ]
    subprocess.run([*pip, str(tmp_path / "site"), str(tmp_path / "src")], check=True, timeout=120)
    [entry] = [json.loads(rest) for name, _, rest in steps if name == "ENTRYPOINT"]
    program = tmp_path / "site/bin" / entry[0]
    done = subprocess.run(
        [sys.executable, program, "--version"], env={"PYTHONPATH": str(tmp_path / "site")}, capture_output=True,
        text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == f"penstock, version {penstock.__version__}\n"
    tag = COMPOSE["services"]["worker"]["image"]
    assert tag == f"penstock:{penstock.__version__}"


def promtool(*words: str, folder: Path = DEPLOY / "prometheus") -> None:
    done = subprocess.run(
        [find("promtool", "prometheus", ()), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts() -> None:
    promtool("check", "rules", "alerts.yaml")


def test_alerts_find_broken_deployments() -> None:
    promtool("test", "rules", "alerts_test.yaml")


def test_scraping() -> None:
    promtool("check", "config", "--syntax-only", "prometheus.yaml")


def queries() -> list[str]:
    """All Prometheus queries."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    found += [
        trigger["metadata"]["query"] for _, each in MANIFESTS for trigger in each.get("spec", {}).get("triggers", ())
    ]
    return found + [rule["expr"] for rule in RULES]


def test_queries_are_promql(tmp_path: Path) -> None:
    asked = [query.replace("$__rate_interval", "1m") for query in queries()]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(asked)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", "rules.yaml", folder=tmp_path)


def test_queries_use_existing_metrics() -> None:
    app = App("memory://metrics")
    app.task(tube="t", name="noop")(print)
    meter = Meter(Worker(app))
    text = meter.exposition() + metrics.exposition(read_sample(app.broker.runtime), 0, metrics.Meter())
    app.close()
    served = set(re.findall(r"^# TYPE (\S+)", text.decode(), re.MULTILINE)) | {"up"}
    asked = {name for query in queries() for name in re.findall(r"\b(?:penstock|process)_\w+\b(?!\")", query)}
    assert asked
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} <= served


def test_the_dashboard() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & places, "two panels at one place"
        places |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "tube"}
