#!/usr/bin/env python3
"""Checks that deploy/ speaks of what there is.

Every metric that alerts.yml and grafana.json name is one that the server's sources write, every option
of the unit, the image and the routers' files, and every variable SLUICE_* of sluice.env and the
manifests, is one of the program, and the files can be read. The manifests agree with each other and with
the server (kubernetes_files.py); commands of routers are of the pinned versions. With promtool on the
PATH it also checks the rules. With --start the program has to serve the bundled model with the variables
of the manifests, but for places and ports. Needs PyYAML (Debian's python3-yaml) and, to start, libzmq5.

    python3 tools/check_deploy.py [--program build/release/sluice] [--deploy deploy] [--start]
                                                        one line per finding; exit 1 if any
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import yaml
except ImportError:
    sys.exit("check_deploy: PyYAML is missing; tools/setup.sh test installs Debian's python3-yaml")

import kubernetes_files

ROOT = Path(__file__).resolve().parent.parent
METRIC = re.compile(r"\b((?:vllm|sluice):[a-z][a-z0-9_]*)")
WRITTEN = re.compile(r'"((?:vllm|sluice):[a-z0-9_]+)"')
HISTOGRAM_PARTS = re.compile(r"_(?:bucket|sum|count)$")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
VARIABLE = re.compile(r"\b(SLUICE_[A-Z_]+)")
# A command line of the server in a comment or a text; it goes on in the next line after a backslash.
COMMAND = re.compile(r"sluice serve(?:[^\n`]|(?<=\\)\n)*")
OPEN_ROUTE = re.compile(r'add\("(/[^"]*)", \{[^}]*\.needs_key = false')
OWN_FILE = re.compile(r"\b(?:docs|tools|deploy)/[\w./-]*\w")
PINNED = re.compile(r"^([\w-]+)==(\S+)$", re.MULTILINE)
# Read by the server, though no option has their names.
OTHER_VARIABLES = {"SLUICE_API_KEY"}
START_SECONDS = 60
# Of cmake, apt-get, podman and useradd, which the image's steps run.
IMAGE_LINES = re.compile(r"^(?:CMD|ENTRYPOINT|ENV) .*", re.MULTILINE)


def written_metrics():
    sources = (ROOT / "src/server/metrics").glob("*.cc")
    return {name for source in sources for name in WRITTEN.findall(source.read_text(encoding="utf-8"))}


def unknown_metrics(name, text, written):
    for metric in sorted(set(METRIC.findall(text))):
        if metric not in written and HISTOGRAM_PARTS.sub("", metric) not in written:
            yield f"{name}: no metric {metric}"


def unknown_options(name, text, options):
    variables = {"SLUICE_" + option[2:].replace("-", "_").upper() for option in options}
    for option in sorted(set(OPTION.findall(text)) - options):
        yield f"{name}: serve has no option {option}"
    for variable in sorted(set(VARIABLE.findall(text)) - variables - OTHER_VARIABLES):
        yield f"{name}: no option is read from {variable}"


def options_of(program):
    text = subprocess.run([program, "serve", "--help-all"], capture_output=True, text=True, check=True).stdout
    return set(OPTION.findall(text))


def open_routes():
    """Paths that are answered without a key."""
    return set(OPEN_ROUTE.findall((ROOT / "src/server/app/status_routes.cc").read_text(encoding="utf-8")))


def missing_files(name, text):
    for path in sorted(set(OWN_FILE.findall(text))):
        if not (ROOT / path).exists():
            yield f"{name}: no file {path}"


def router_faults(deploy, written, options):
    pinned = dict(PINNED.findall((ROOT / "tools/clients/router_requirements.txt").read_text(encoding="utf-8")))
    for path in sorted((deploy / "routers").iterdir()):
        name, text = f"routers/{path.name}", path.read_text(encoding="utf-8")
        yield from unknown_metrics(name, text, written)
        yield from unknown_options(name, "\n".join(COMMAND.findall(text)), options)
        yield from unknown_options(name, " ".join(VARIABLE.findall(text)), options)
        yield from missing_files(name, text)
        if path.suffix == ".sh":
            program = re.search(r"^exec (\S+)", text, re.MULTILINE).group(1)
            if f"{program} {pinned.get(program)} (PyPI)" not in text:
                yield f"{name}: it is not about {program} {pinned.get(program)}, which is tested"


def manifest_faults(deploy, options):
    directory = deploy / "kubernetes"
    for path in sorted(directory.rglob("*.yaml")):
        text, name = path.read_text(encoding="utf-8"), f"kubernetes/{path.name}"
        yield from unknown_options(name, " ".join(VARIABLE.findall(text)), options)
        yield from missing_files(name, text)
    manifests = kubernetes_files.Manifests(directory, open_routes())
    yield from manifests.findings()
    yield from manifests.unlike_llm_d(yaml.safe_load((deploy / "routers/llm-d.yaml").read_text(encoding="utf-8")))


def start_faults(program, deploy):
    """The server takes the values of the variables, serves, and ends by SIGTERM with status 0."""
    values = kubernetes_files.Manifests(deploy / "kubernetes", open_routes()).values
    with tempfile.TemporaryDirectory() as directory, tempfile.NamedTemporaryFile("w+") as log:
        here = {"SLUICE_MODEL": str(ROOT / "models/needle"), "SLUICE_KV_STORE": directory, "SLUICE_PORT": "0",
                "SLUICE_KV_EVENTS": "tcp://127.0.0.1:*", "SLUICE_KV_EVENTS_REPLAY": "tcp://127.0.0.1:*",
                "SLUICE_API_KEY": "key", "SLUICE_HOST": "127.0.0.1", "PATH": os.environ["PATH"]}
        server = subprocess.Popen([program, "serve"], env={k: v for k, v in values.items() if v} | here, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while server.poll() is None and time.monotonic() < deadline and "\nserving " not in Path(log.name).read_text():
            time.sleep(0.1)
        serves = server.poll() is None and time.monotonic() < deadline
        server.terminate()
        if server.wait(START_SECONDS) != 0 or not serves:
            yield f"kubernetes: with its variables the server says: {Path(log.name).read_text().strip()}"


def rule_faults(deploy):
    if shutil.which("promtool") is None:
        return
    for command in (["promtool", "check", "rules", "alerts.yml"],
                    ["promtool", "check", "config", "--syntax-only", "prometheus.yml"]):
        done = subprocess.run(command, cwd=deploy, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield f"{' '.join(command)}: {(done.stdout + done.stderr).strip()}"


def findings(program, deploy):
    written, options = written_metrics(), options_of(program)
    texts = {path.name: path.read_text(encoding="utf-8") for path in deploy.iterdir() if path.is_file()}
    board = json.loads(texts["grafana.json"])
    if not board["panels"]:
        yield "grafana.json: no panels"
    for name in ("alerts.yml", "grafana.json"):
        yield from unknown_metrics(name, texts[name], written)
    unit = "\n".join(line for line in texts["sluice.service"].splitlines() if line.startswith(("ExecStart=", "#")))
    yield from unknown_options("sluice.service", unit, options)
    yield from unknown_options("sluice.env", texts["sluice.env"], options)
    yield from unknown_options("Containerfile", "\n".join(IMAGE_LINES.findall(texts["Containerfile"])), options)
    yield from router_faults(deploy, written, options)
    yield from manifest_faults(deploy, options)
    yield from rule_faults(deploy)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=ROOT / "build/release/sluice")
    parser.add_argument("--deploy", default=ROOT / "deploy", type=Path)
    parser.add_argument("--start", action="store_true")
    arguments = parser.parse_args()
    found = list(findings(arguments.program, arguments.deploy))
    if arguments.start:
        found += start_faults(arguments.program, arguments.deploy)
    for finding in found:
        print(finding)
    print(f"deploy/: {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
