#!/usr/bin/env bash
# Runs real clients of OpenAI's and Anthropic's APIs against `sluice serve` with the bundled model.
#
#   tools/clients/run.sh [CLIENT...]      openai, anthropic, lm-eval, ruler, langchain, litellm,
#                                         pydantic-ai, instructor, llama-index, smolagents, llm,
#                                         schemathesis, load-tools, silent-peer, claude-code, codex,
#                                         schema-judge, llama-suite, vllm-suite, kv-events,
#                                         vllm-router, smg, nginx, failover; all without a name
#
# SLUICE: the program (build/release/sluice). MODEL: its model (models/needle). SERVE_OPTIONS: more
# of its options, such as --tensor-parallel-size 2. CLIENTS_DIR: where each client has a virtual
# environment of its own, kept for the next run
# (${XDG_CACHE_HOME:-$HOME/.cache}/sluice-clients). The clients come from PyPI; load-tools are
# programs of Debian, slowhttptest and wrk, and silent-peer needs Debian's ip. llama-suite and
# vllm-suite are those servers' own tests, from source distributions that are unpacked there, too;
# vllm-suite asks SmolLM2, which it makes if it is not there. schema-judge lets jsonschema judge
# 10,000 answers of a model with random weights. With SUITES=short these three run a part, for CI.
# The last five start two servers of their own, four of them a router of others before these: those
# of router_requirements.txt, and Debian's nginx, which is unpacked and not installed.
# The server listens on a free port of the loopback address and asks for a key.
#
# Exit status: 0 all clients that were named passed (without names, all that could be run), 1 a
# failure, 2 usage, 75 (EX_TEMPFAIL) one that was named, or all, could not be run.
set -u
cd "$(dirname "$0")/../.." || exit 1
here=tools/clients
. tools/own_folder.sh

export SLUICE="${SLUICE:-build/release/sluice}" MODEL="${MODEL:-models/needle}"
environments="${CLIENTS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-clients}"
all_clients=(openai anthropic lm-eval ruler langchain litellm pydantic-ai instructor llama-index
  smolagents llm schemathesis load-tools silent-peer claude-code codex schema-judge llama-suite
  vllm-suite kv-events vllm-router smg nginx failover)
# What the tests of other servers import.
suite_packages="pytest==9.2.0 pytest-timeout==2.4.0 requests==2.34.2 openai==3.54.0"

requirement() { grep "^$1==" "$here/router_requirements.txt"; }

# The newest of which all dependencies could be installed when they were chosen; of load-tools and
# silent-peer, packages of Debian.
packages_of() {
  case "$1" in
    openai) echo "openai==3.54.0" ;;
    anthropic) echo "anthropic==2.12.0" ;;
    lm-eval) echo "lm-eval[api]==0.4.13" ;;
    langchain) echo "langchain-openai==1.7.3" ;;
    ruler) echo "lm-eval[api]==0.4.13 wonderwords==3.0.1 transformers==5.23.0" ;;
    litellm) echo "litellm[mcp]==1.109.3" ;;
    pydantic-ai) echo "pydantic-ai-slim[openai]==2.68.0" ;;
    instructor) echo "instructor==1.17.0" ;;
    llama-index) echo "llama-index-llms-openai-like==0.8.1" ;;
    smolagents) echo "smolagents[openai]==1.26.0" ;;
    llm) echo "llm==0.36" ;;
    schemathesis) echo "schemathesis==4.32.0" ;;
    load-tools) echo "slowhttptest wrk" ;;
    silent-peer) echo "iproute2" ;;
    claude-code) echo "claude-agent-sdk==0.2.188" ;;
    codex) echo "openai-codex-cli-bin==0.163.0" ;;
    schema-judge) echo "jsonschema[format-nongpl]==4.26.0" ;;
    llama-suite) echo "$suite_packages filelock==4.3.1" ;;
    vllm-suite) echo "$suite_packages pytest-asyncio==1.5.0 anthropic==2.12.0" \
      "transformers==5.23.0 jinja2==3.1.6 regex==2026.11.19 jsonschema==4.26.0" \
      "prometheus-client==0.26.0" ;;
    kv-events) echo "$(requirement pyzmq) $(requirement msgspec)" ;;
    vllm-router | failover) requirement vllm-router ;;
    smg) requirement smg ;;
    nginx) echo "nginx" ;;
    *) return 1 ;;
  esac
}

# Generated requests ask for the longest answers, too, and have tools, which a template has to read.
options_for() {
  [ "$1" != schemathesis ] || echo "--max-model-len 1024 --request-timeout 1" \
    "--chat-template tests/golden/tokenizer/templates/qwen2.5.jinja"
}

# Debian's package would also start a server. A new machine has no lists of packages yet.
unpack_nginx() {
  (cd "$1" && { apt-get download -q nginx || { update_lists && apt-get download -q nginx; }; } &&
    dpkg-deb -x nginx_*.deb . && rm nginx_*.deb && usr/sbin/nginx -v)
}

update_lists() {
  if [ "$(id -u)" -eq 0 ]; then apt-get update -q; else sudo apt-get update -q; fi
}

install_packages() {
  case "${1##*/}" in
    load-tools | silent-peer) tools/setup.sh "${1##*/}" ;;
    nginx) unpack_nginx "$1" ;;
    kv-events | vllm-router) tools/setup.sh kv-events && install_from_pypi "$1" "$2" ;;
    *) install_from_pypi "$1" "$2" ;;
  esac
}

install_from_pypi() {
  # shellcheck disable=SC2086 # several packages are several words
  "$1/bin/python" -m pip --disable-pip-version-check install --quiet --retries 2 --timeout 20 $2
}

# The stamp is written last: a directory without it, or with another one, is made anew.
install_client() {
  local packages directory="$environments/$1" log="$environments/$1.log"
  packages=$(packages_of "$1")
  [ "$(cat "$directory/packages" 2>/dev/null)" != "$packages" ] || return 0
  remake_own_folder "$directory" packages >"$log" 2>&1 &&
    python3 -m venv "$directory" >>"$log" 2>&1 &&
    install_packages "$directory" "$packages" >>"$log" 2>&1 &&
    echo "$packages" >"$directory/packages"
}

# For the client that is named. Sets server_pid, OPENAI_BASE_URL and ANTHROPIC_BASE_URL.
start_server() {
  # A debug build fills the KV cache, which without a limit is most of the memory.
  # shellcheck disable=SC2046 # several options are several words
  "$SLUICE" serve --model "$MODEL" --port 0 --kv-cache-bytes 512M $(options_for "$1") \
    ${SERVE_OPTIONS:-} >"$server_log" 2>&1 &
  server_pid=$!
  export SERVER_PID=$server_pid
  local url="" deadline=$((SECONDS + 60))
  while [ $SECONDS -lt $deadline ] && kill -0 "$server_pid" 2>/dev/null; do
    url=$(sed -n 's/^listening on \(http[^,]*\),.*/\1/p' "$server_log")
    if [ -n "$url" ] && python3 "$here/is_healthy.py" "$url/health"; then
      export OPENAI_BASE_URL="$url/v1" ANTHROPIC_BASE_URL="$url"
      return 0
    fi
    sleep 0.1
  done
  echo "the server does not answer; its output:"
  cat "$server_log"
  return 1
}

# check_CLIENT.py, and then what is only about a part of it, check_CLIENT_*.py.
run_programs() {
  local program status=0 num_run=0 name="$here/check_${1//-/_}"
  for program in "$name.py" "$name"_*.py; do
    [ -e "$program" ] || continue
    num_run=$((num_run + 1))
    "$environments/$1/bin/python" "$program" || status=$?
  done
  [ "$num_run" -gt 0 ] || status=1
  return "$status"
}

# SIGTERM must end it with status 0.
stop_server() {
  local pid="$server_pid" status
  server_pid=""
  kill -TERM "$pid" 2>/dev/null
  wait "$pid"
  status=$?
  [ "$status" -eq 0 ] && return
  echo "FAILED: after SIGTERM the server ended with status $status; the end of its output:"
  tail -n 20 "$server_log"
  return 1
}

clean_up() {
  [ -z "$server_pid" ] || kill -KILL "$server_pid" 2>/dev/null
  rm -f "$server_log"
}

num_needed=$#
[ $# -gt 0 ] || { set -- "${all_clients[@]}"; num_needed=1; }
for client in "$@"; do
  packages_of "$client" >/dev/null && continue
  echo "run.sh: unknown client '$client'; give some of ${all_clients[*]}" >&2
  exit 2
done
if ! [ -x "$SLUICE" ]; then
  echo "run.sh: $SLUICE is no program; build it (make demo) or set SLUICE" >&2
  exit 2
fi
python3 -c "import ensurepip" 2>/dev/null || tools/setup.sh model || exit 1

# Clients read the key by themselves. They must ask no other server.
export OPENAI_API_KEY=sk-of-the-tests ANTHROPIC_API_KEY=sk-of-the-tests
export SLUICE_API_KEY=sk-of-the-tests
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 HF_HUB_OFFLINE=1 LITELLM_LOCAL_MODEL_COST_MAP=True
export TQDM_DISABLE=1 PYTHONDONTWRITEBYTECODE=1
mkdir -p "$environments" || exit 1
server_log=$(mktemp)
server_pid=""
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

passed=0 skipped=() failed=()
for client in "$@"; do
  echo "=== $client ($(packages_of "$client"))"
  if ! install_client "$client"; then
    echo "skipped: $client could not be installed:" \
      "$(tail -n 1 "$environments/$client.log")"
    skipped+=("$client")
    continue
  fi
  # A server for each client, so that no client finds the cache of another.
  start_server "$client" || exit 1
  run_programs "$client"
  status=$?
  stop_server || status=1
  case "$status" in
    0) passed=$((passed + 1)) ;;
    75) skipped+=("$client") ;;  # the check has said why
    *) failed+=("$client") ;;
  esac
done

echo "clients: $passed passed, ${#failed[@]} failed${failed[*]:+ (${failed[*]})}," \
  "${#skipped[@]} skipped${skipped[*]:+ (${skipped[*]})}"
[ "${#failed[@]}" -eq 0 ] || exit 1
[ "$passed" -ge "$num_needed" ] || exit 75
