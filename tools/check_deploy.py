#!/usr/bin/env python3
"""Checks that deploy/ speaks of what there is.

Every metric that alerts.yml and grafana.json name is one that the server's sources write, every option
of the unit and the image, and every variable SLUICE_* of sluice.env, is one of the program, and the
files can be read. With promtool on the PATH it also checks the rules.

    python3 tools/check_deploy.py [--program build/release/sluice]     one line per finding; exit 1 if any
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\b((?:vllm|sluice):[a-z0-9_]+)")
WRITTEN = re.compile(r'"((?:vllm|sluice):[a-z0-9_]+)"')
HISTOGRAM_PARTS = re.compile(r"_(?:bucket|sum|count)$")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
VARIABLE = re.compile(r"\b(SLUICE_[A-Z_]+)")
# Read by the server, though no option has their names.
OTHER_VARIABLES = {"SLUICE_API_KEY"}
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


def rule_faults():
    if shutil.which("promtool") is None:
        return
    for command in (["promtool", "check", "rules", "alerts.yml"],
                    ["promtool", "check", "config", "--syntax-only", "prometheus.yml"]):
        done = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield f"{' '.join(command)}: {(done.stdout + done.stderr).strip()}"


def findings(program):
    written, options = written_metrics(), options_of(program)
    texts = {path.name: path.read_text(encoding="utf-8") for path in DEPLOY.iterdir() if path.is_file()}
    board = json.loads(texts["grafana.json"])
    if not board["panels"]:
        yield "grafana.json: no panels"
    for name in ("alerts.yml", "grafana.json"):
        yield from unknown_metrics(name, texts[name], written)
    unit = "\n".join(line for line in texts["sluice.service"].splitlines() if line.startswith(("ExecStart=", "#")))
    yield from unknown_options("sluice.service", unit, options)
    yield from unknown_options("sluice.env", texts["sluice.env"], options)
    yield from unknown_options("Containerfile", "\n".join(IMAGE_LINES.findall(texts["Containerfile"])), options)
    yield from rule_faults()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=ROOT / "build/release/sluice")
    found = list(findings(parser.parse_args().program))
    for finding in found:
        print(finding)
    print(f"deploy/: {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
