// sluice serve: the HTTP server with its engine, from the socket to the drain. Runs on the main
// thread.
#include "cli/serve/serve.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "io/file.h"
#include "server/app/sluice_server.h"
#include "server/metrics/log_line.h"
#include "server/metrics/status_line.h"
#include "sluice/inspect.h"
#include "text/build_info.h"

namespace sluice::cli {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Phase = server::ServerState::Phase;

constexpr auto kStatusInterval = 10s;
constexpr auto kSignalTick = 100ms;
// A dead engine's clients get their errors within this time; then the process ends.
constexpr auto kTimeToFail = 1s;

constexpr size_t kMinBodyBytes = size_t{8} << 20;
constexpr size_t kBodyBytesPerToken = 24;  // a token's text, escaped

std::vector<std::string> read_keys(const ServeCommand& command) {
  std::vector<std::string> keys;
  if (!command.api_key_file.empty()) {
    keys = server::parse_keys(read_file(command.api_key_file), command.api_key_file);
  }
  if (const char* key = std::getenv("SLUICE_API_KEY")) {
    std::ranges::copy(server::parse_keys(key, "SLUICE_API_KEY"), std::back_inserter(keys));
  }
  return keys;
}

size_t max_body_bytes(const ServeCommand& command) {
  if (command.max_body_bytes) return *command.max_body_bytes;
  const int64_t num_tokens = command.engine.max_model_len.value_or(
      summarize_model(command.engine.model).max_position_embeddings);
  return std::max(kMinBodyBytes, kBodyBytesPerToken * static_cast<size_t>(num_tokens));
}

http::Limits http_limits(const ServeCommand& command) {
  http::Limits limits;
  limits.body_bytes = max_body_bytes(command);
  limits.num_connections = static_cast<size_t>(command.max_connections);
  limits.client_buffer_bytes = command.client_buffer_bytes;
  limits.client_stall = std::chrono::seconds(command.client_stall_s);
  limits.answer_time = std::chrono::seconds(command.request_timeout_s);
  return limits;
}

std::optional<ToolFormat> tool_format_of(const ServeCommand& command) {
  if (command.tool_call_parser == "auto") return std::nullopt;
  const auto format = find_tool_format(command.tool_call_parser);
  if (!format) {
    fail(ErrorCode::kInvalidArgument,
         "--tool-call-parser is '{}'; it must be auto, hermes, qwen3_coder, llama3_json or none",
         command.tool_call_parser);
  }
  return format;
}

std::string address_text(const ServeCommand& command, const server::SluiceServer& server) {
  if (!command.uds.empty()) return command.uds;
  const bool is_v6 = command.host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", is_v6 ? "[" + command.host + "]" : command.host,
                     server.port());
}

// Empty without a page. The place of reading is what it alone shows, and it needs an option.
std::string page_text(const ServeCommand& command, const std::string& address) {
  if (command.no_ui || !command.uds.empty()) return "";
  const bool counts_reads = command.engine.sparse.policy.ends_with("quest");
  return fmt::format("; page at {}/{}", address,
                     counts_reads ? ""
                                  : ", which shows where answers are read with "
                                    "--sparse-policy full+quest");
}

// Warnings as they come, each once; in a log of JSON as one of its lines. They are lines of the
// log, since a reader that stands still must not keep the main thread from its signals.
void log_warnings(const EngineService& service, bool is_json) {
  show_warnings(service.snapshot().warnings, [is_json](const std::string& warning) {
    const auto time = std::chrono::system_clock::now();
    write_log_line(is_json ? metrics::warning_json(time, warning) : "sluice: warning: " + warning);
  });
}

// Writes warnings as they come, and every few seconds, unless it is idle, the line about the
// engine.
class StatusLog {
 public:
  explicit StatusLog(bool is_json) : is_json_(is_json), watch_(Clock::now()) {}

  void tick(const server::ServedModel& model) {
    log_warnings(model.service, is_json_);
    const Clock::time_point now = Clock::now();
    if (now < next_) return;
    next_ = now + kStatusInterval;
    const auto status = watch_.next(now, model.metrics.totals(), model.reading());
    if (!status) return;
    const auto time = std::chrono::system_clock::now();
    write_log_line(is_json_ ? metrics::status_json(time, *status)
                            : metrics::status_text(time, *status));
  }

 private:
  const bool is_json_;
  Clock::time_point next_ = Clock::now() + kStatusInterval;
  metrics::StatusWatch watch_;
};

// Until a signal comes or the engine fails. False: it failed.
bool run_until_stopped(const ServeCommand& command, const server::SluiceServer& server) {
  StatusLog status(command.log_json);
  while (!interrupted()) {
    if (server.state().phase() == Phase::kDead) return false;
    status.tick(*server.state().model());
    std::this_thread::sleep_for(kSignalTick);
  }
  return true;
}

// Without destructors: a device that hangs would keep them waiting.
[[noreturn]] void end_dead(const server::SluiceServer& server) {
  const auto error = server.state().model()->service.snapshot().error;
  write_log_line(
      fmt::format("sluice: the engine failed: {}", error ? error->what() : "it makes no progress"));
  std::this_thread::sleep_for(kTimeToFail);
  std::_Exit(kExitFailure);
}

}  // namespace

server::SluiceServerOptions server_options(const ServeCommand& command) {
  const auto field = api::find_reasoning_field(command.reasoning_field);
  if (!field) {
    fail(ErrorCode::kInvalidArgument,
         "--reasoning-field is '{}'; it must be both, reasoning_content, reasoning or none",
         command.reasoning_field);
  }
  return {.address = command.host,
          .port = static_cast<uint16_t>(command.port),
          .unix_path = command.uds,
          .num_http_threads = command.http_threads,
          .limits = http_limits(command),
          .gate = {.keys = read_keys(command),
                   .allowed_hosts = command.allowed_hosts,
                   .cors_origins = server::CorsOrigins(command.cors_origins)},
          .model_directory = command.engine.model,
          .chat_template = command.engine.chat_template,
          .model_names = command.served_model_names,
          .reasoning_field = *field,
          .tool_format = tool_format_of(command),
          .version = std::string(build_version()),
          .has_page = !command.no_ui,
          .log =
              [is_json = command.log_json](const metrics::RequestLogEntry& entry) {
                write_log_line(is_json ? metrics::request_log_json(entry)
                                       : metrics::request_log_text(entry));
              },
          .num_lost_log_lines = num_lost_messages,
          .log_text = command.log_text};
}

ServiceLimits service_limits(const ServeCommand& command) {
  return {.max_waiting = command.max_waiting, .max_waiting_tokens = command.max_waiting_tokens};
}

// The service is destroyed after the server, whose handlers use it.
int serve(const ServeCommand& command) {
  guard_termination();
  std::unique_ptr<EngineService> service;
  server::SluiceServer server(server_options(command), command.allow_unauthenticated);
  const std::string address = address_text(command, server);
  write_message(fmt::format("listening on {}, loading {}", address, command.engine.model));
  EngineOptions engine = command.engine;
  engine.count_page_reads = !command.no_ui;
  service = load_service(engine, service_limits(command), command.verbose,
                         [&](const LoadProgress& progress) { server.set_loading(progress); });
  server.serve(*service);
  write_message(fmt::format("serving {} on {}/v1, up to {} tokens a request{}",
                            server.state().names()[0], address, service->max_model_len(),
                            page_text(command, address)));
  if (!run_until_stopped(command, server)) end_dead(server);
  write_log_line(fmt::format("draining; running requests get {} s, a second signal ends now",
                             command.drain_timeout_s));
  server.drain(std::chrono::seconds(command.drain_timeout_s));
  log_warnings(*service, command.log_json);
  return kExitOk;
}

}  // namespace sluice::cli
