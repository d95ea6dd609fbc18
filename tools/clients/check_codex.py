"""Codex's command line, from the wheel openai-codex-cli-bin: a round with a tool over /v1/responses.

It has a home of its own and asks no other server than Sluice's.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import codex_cli_bin

from checks import holds, run_checks, same, scripted_server

PROGRAM = pathlib.Path(codex_cli_bin.__file__).parent / "bin/codex"
NUMBER = "7391846"
CALL = {"name": "exec_command", "arguments": {"cmd": f"echo {NUMBER} > found.txt"}}
# A tool that Codex does not have: what calls it is no call but text.
OTHER_CALL = {"name": "no_tool_of_codex", "arguments": {}}
BEFORE, ANSWER = "I will write it.", "The number is in found.txt now."
CONFIG = """
model = "scripted"
model_provider = "sluice"
[model_providers.sluice]
name = "sluice"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""


def run(server):
    """Its events, and the files of its directory by name."""
    with tempfile.TemporaryDirectory() as home:
        work = pathlib.Path(home) / "work"
        work.mkdir()
        (pathlib.Path(home) / "config.toml").write_text(CONFIG.format(url=server.url), encoding="utf-8")
        environment = {"PATH": os.environ["PATH"], "HOME": home, "CODEX_HOME": home, "TMPDIR": home,
                       "OPENAI_API_KEY": os.environ["OPENAI_API_KEY"]}
        # The sandbox needs more of the system than a container may give; the directory is made for this run.
        words = [PROGRAM, "exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access",
                 "Write the number."]
        done = subprocess.run(words, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                              encoding="utf-8", timeout=120, check=False)
        same(done.returncode, 0, f"status of codex, which printed {done.stdout}{done.stderr}: it")
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return events, {path.name: path.read_text(encoding="utf-8") for path in work.iterdir()}


def items(events, kind):
    return [event["item"] for event in events
            if event["type"] == "item.completed" and event["item"]["type"] == kind]


def check_tool_round():
    with scripted_server(CALL, ANSWER, BEFORE) as server:
        events, files = run(server)
        same([item["text"] for item in items(events, "agent_message")], [BEFORE, ANSWER])
        (command,) = items(events, "command_execution")
        same((command["exit_code"], command["status"]), (0, "completed"))
        same(files, {"found.txt": f"{NUMBER}\n"}, "files that the tool wrote")
        usage = events[-1]["usage"]
        holds(usage["cached_input_tokens"] > 1000, f"the second turn finds the first: {usage}")
        # It leaves as soon as it has the last event: the answer is complete for all that.
        server.check_statuses("/v1/responses", [200, 200])


def check_call_of_an_unknown_tool():
    with scripted_server(OTHER_CALL, ANSWER, BEFORE) as server:
        events, files = run(server)
        (message,) = items(events, "agent_message")
        holds(message["text"].startswith(BEFORE) and OTHER_CALL["name"] in message["text"], message["text"])
        same(files, {}, "files")
        server.check_statuses("/v1/responses", [200])


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
