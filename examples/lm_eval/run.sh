#!/bin/sh
# lm-eval asks the model in its own process, with the task of castles.yaml, whose data is beside it.
#
#   pip install 'sluice-llm[lm-eval]'
#   examples/lm_eval/run.sh [MODEL [OPTION=VALUE,...]]       PYTHON: the interpreter (python3)
#
# The second argument has options of sluice.LLM, such as sparse_policy=full+quest: what does a
# policy cost? Tasks of lm-eval itself (--tasks lambada_openai) read their data from a hub.
set -eu
python="${PYTHON:-python3}"
model="${1:-models/needle}"
[ ! -d "$model" ] || model=$(cd "$model" && pwd)
cd "$(dirname "$0")"
exec "$python" -m sluice.lm_eval run --model sluice --model_args "model=$model${2:+,$2}" \
  --tasks castles --include_path . --apply_chat_template
