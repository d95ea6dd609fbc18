# Sparse attention by the numbers: how much of the KV each policy reads, and whether the answer stays.
#
# A notebook as a program: editors run the cells between the lines "# %%" one by one. It needs the
# Python package (docs/python.md) and takes seconds with the bundled model.
#
#     python3 examples/policies.py [MODEL]

# %% The text: a fact, far from its question
import sys

from sluice import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "models/needle"
fact = "The secret number of the purple castle is 7391846. "
filler = "The road was long and nobody spoke, and the rain went on until the evening came. "
text = filler * 30 + fact + filler * 60 + "What is the secret number of the purple castle?"

# %% One engine for each policy; decode by Quest reads 512 tokens
answers = {}
for policy in ("full", "full+quest", "sampled+quest"):
    options = {} if policy == "full" else {"sparse_topk_tokens": 512}
    llm = LLM(model, device="cpu", max_model_len=4096, sparse_policy=policy, **options)
    output = llm.chat([{"role": "user", "content": text}], SamplingParams(temperature=0, max_tokens=24))[0]
    answers[policy] = output.outputs[0].text
    print(f"{policy:14} {len(output.prompt_token_ids):5} prompt tokens: {answers[policy]}")

# %% All found the fact
assert all("7391846" in answer for answer in answers.values()), answers
