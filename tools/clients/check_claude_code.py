"""Claude Code's command line, from the wheel of claude-agent-sdk: a text, a round with a tool, and two errors.

It has a home of its own and asks no other server than Sluice's.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import claude_agent_sdk

from checks import holds, run_checks, same, scripted_server

PROGRAM = pathlib.Path(claude_agent_sdk.__file__).parent / "_bundled/claude"
NUMBER = "7391846"
CALL = {"name": "Bash", "arguments": {"command": f"echo {NUMBER} > found.txt", "description": "Write the number"}}
BEFORE, ANSWER = "I will write it.", "The number is in found.txt now."


def run(server, *options, key=os.environ["ANTHROPIC_API_KEY"]):
    """The messages that it prints, the last of which is the result, and the files of its directory by name."""
    with tempfile.TemporaryDirectory() as home:
        work = pathlib.Path(home) / "work"
        work.mkdir()
        environment = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "ANTHROPIC_BASE_URL": server.url,
                       "ANTHROPIC_API_KEY": key, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        words = [PROGRAM, "-p", "Write the number.", "--model", "scripted", "--output-format", "stream-json",
                 "--verbose", *options]
        done = subprocess.run(words, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                              encoding="utf-8", timeout=120, check=False)
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        holds(messages and messages[-1]["type"] == "result", f"it ends with a result, not: {done.stdout}{done.stderr}")
        return messages, {path.name: path.read_text(encoding="utf-8") for path in work.iterdir()}


def blocks(messages, kind):
    """Of the messages of this kind, in order."""
    return [block for message in messages if message["type"] == kind for block in message["message"]["content"]]


def check_text():
    with scripted_server(CALL, ANSWER) as server:
        messages, _ = run(server, "--tools", "")
        result = messages[-1]
        same((result["result"], result["is_error"], result["num_turns"]), (ANSWER, False, 1))
        server.check_statuses("/v1/messages", [200])


def check_tool_round():
    with scripted_server(CALL, ANSWER, BEFORE) as server:
        messages, files = run(server, "--allowedTools", "Bash")
        text, call, answer = blocks(messages, "assistant")
        same((text["type"], text["text"]), ("text", BEFORE))
        same((call["type"], call["name"], call["input"]), ("tool_use", CALL["name"], CALL["arguments"]))
        same(answer["text"], ANSWER)
        same([block["tool_use_id"] for block in blocks(messages, "user")], [call["id"]], "answered calls")
        same(files, {"found.txt": f"{NUMBER}\n"}, "files that the tool wrote")
        result = messages[-1]
        same((result["result"], result["is_error"], result["num_turns"]), (ANSWER, False, 2))
        holds(result["usage"]["cache_read_input_tokens"] > 1000, f"the second turn finds the first: {result['usage']}")
        server.check_statuses("/v1/messages", [200, 200])


def check_prompt_that_is_too_long():
    with scripted_server(CALL, ANSWER, options=["--max-model-len", "8192"]) as server:
        result = run(server)[0][-1]
        same(result["is_error"], True, "is_error")
        holds("too long" in result["result"].lower(), result["result"])


def check_wrong_key():
    with scripted_server(CALL, ANSWER) as server:
        result = run(server, key="sk-of-another")[0][-1]
        same((result["is_error"], result["api_error_status"]), (True, 401))


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
