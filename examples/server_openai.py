"""Asks `sluice serve` with OpenAI's client: an answer, a stream, a document that is computed once.

    sluice serve models/needle &
    pip install openai && python3 examples/server_openai.py

The client reads OPENAI_BASE_URL (http://127.0.0.1:8000/v1) and OPENAI_API_KEY; a server without keys takes any.
"""

import os

import openai

os.environ.setdefault("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
os.environ.setdefault("OPENAI_API_KEY", "none")
QUESTION = "What is the secret number of the purple castle?"
DOCUMENT = "The road was long and nobody spoke. " * 40 + "The secret number of the purple castle is 7391846. "

client = openai.OpenAI()
model = client.models.list().data[0].id

answer = client.chat.completions.create(
    model=model, temperature=0, max_tokens=32,
    messages=[{"role": "user", "content": "The secret number of the purple castle is 7391846. " + QUESTION}])
print(answer.choices[0].message.content)

stream = client.chat.completions.create(
    model=model, temperature=0, max_tokens=32, stream=True,
    messages=[{"role": "user", "content": DOCUMENT + QUESTION}])
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

# The same document again: its KV is found in the prefix cache.
again = client.chat.completions.create(
    model=model, temperature=0, max_tokens=32,
    messages=[{"role": "user", "content": DOCUMENT + QUESTION}])
usage = again.usage
print(f"{usage.prompt_tokens_details.cached_tokens} of {usage.prompt_tokens} prompt tokens were computed before")
