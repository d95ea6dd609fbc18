"""An agent with one tool: the model asks for it, this program runs it, the model answers with its result.

    sluice serve Qwen/Qwen3-0.6B &
    pip install openai && python3 examples/agent.py "What is the weather in Paris?"

The model's chat template must read tools (the bundled model's does not). OPENAI_BASE_URL and OPENAI_API_KEY as in
server_openai.py.
"""

import json
import os
import sys

import openai

os.environ.setdefault("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
os.environ.setdefault("OPENAI_API_KEY", "none")
MOST_ROUNDS = 5
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def get_weather(city: str = "", **_: str) -> str:
    return json.dumps({"city": city, "sky": "clear", "celsius": 21})


def main() -> None:
    client = openai.OpenAI()
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": " ".join(sys.argv[1:]) or "What is the weather in Paris?"}]
    for _ in range(MOST_ROUNDS):
        message = client.chat.completions.create(model=model, messages=messages, tools=TOOLS,
                                                 temperature=0).choices[0].message
        messages.append(message.to_dict())
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            print(f"{call.function.name}({call.function.arguments}) -> {result}", file=sys.stderr)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(f"no answer after {MOST_ROUNDS} rounds", file=sys.stderr)


main()
