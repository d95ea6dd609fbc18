"""smolagents: answers by a schema, and an agent whose every step is one, and one that must call."""

import os
import sys

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent

from castles import Castle, QUESTION
from checks import MODEL_NAME, RESULT, holds, run_checks, same, scripted_server


def model(name=MODEL_NAME, url=None):
    return OpenAIModel(name, api_base=url or os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"],
                       temperature=0, max_tokens=300)


def check_schemas():
    json_schema = {"name": "castle", "strict": True, "schema": Castle.model_json_schema()}
    message = model().generate([{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
                               response_format={"type": "json_schema", "json_schema": json_schema})
    holds(Castle.model_validate_json(message.content), message)


def check_agent_with_structured_steps():
    step = f'{{"thought": "I know it.", "code": "final_answer({RESULT})"}}'
    with scripted_server(answer=step) as server:
        agent = CodeAgent(tools=[], model=model("scripted", server.url + "/v1"), max_steps=1, verbosity_level=0,
                          use_structured_outputs_internally=True)
        same(agent.run(QUESTION), int(RESULT))


def check_agent_that_must_call():
    with scripted_server({"name": "final_answer", "arguments": {"answer": RESULT}}, before_call="") as server:
        agent = ToolCallingAgent(tools=[], model=model("scripted", server.url + "/v1"), max_steps=1, verbosity_level=0)
        same(agent.run(QUESTION), RESULT)


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
