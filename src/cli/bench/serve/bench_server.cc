#include "cli/bench/serve/bench_server.h"

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <future>
#include <limits>
#include <utility>

#include <pthread.h>

#include "cli/bench/serve/completion.h"
#include "cli/engine_session.h"
#include "cli/serve/serve.h"
#include "core/error.h"
#include "sluice/inspect.h"

namespace sluice::cli {
namespace {

// Every vocabulary has these: those of bytes, if nothing else.
constexpr int32_t kFirstIds = 256;
// The client's own connections, and those of the counts beside it.
constexpr int32_t kMaxConnections = 1 << 20;

// What --url or --uds names. The key is read from where `sluice serve` reads one, so that it is in
// no command line.
ServerAddress running_server(const BenchServeCommand& command) {
  ServerAddress server;
  if (!command.url.empty()) server = parse_server_url(command.url);
  server.unix_path = command.uds;
  if (const char* key = std::getenv("SLUICE_API_KEY")) server.key = key;
  return server;
}

// The command line of `sluice serve` that a user would have given, but for the limits of its queue:
// a refusal would be no measurement.
ServeCommand serve_command(const BenchServeCommand& command, const EngineOptions& engine) {
  ServeCommand serve;
  serve.engine = engine;
  serve.http_threads = command.http_threads;
  serve.max_waiting = std::numeric_limits<int32_t>::max();
  serve.max_waiting_tokens = std::numeric_limits<int64_t>::max() / 2;
  serve.max_connections = kMaxConnections;
  return serve;
}

// Sinks run on the engine's thread, so the sink of a small request can ask for its clock.
clockid_t clock_of_engine(EngineService& service) {
  // Shared: the sink still uses it while the waiter returns.
  const auto found = std::make_shared<std::promise<clockid_t>>();
  service.submit({.prompt = {0}, .params = {.max_tokens = 1}}, [found](const RequestEvent& event) {
    if (!std::holds_alternative<RequestEnd>(event)) return;
    clockid_t clock{};
    pthread_getcpuclockid(pthread_self(), &clock);
    found->set_value(clock);
  });
  return found->get_future().get();
}

}  // namespace

EngineWork operator-(const EngineWork& after, const EngineWork& before) {
  return {.cpu_seconds = after.cpu_seconds - before.cpu_seconds,
          .num_steps = after.num_steps - before.num_steps};
}

SocketFolder::SocketFolder()
    : path_((std::filesystem::temp_directory_path() / "sluice-bench-XXXXXX").string()) {
  if (mkdtemp(path_.data()) == nullptr) {
    fail(ErrorCode::kIo, "cannot make a folder for a socket at {}; set TMPDIR", path_);
  }
}

SocketFolder::~SocketFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

BenchServer::BenchServer(const BenchServeCommand& command, const EngineOptions& engine) {
  if (!command.is_running_server()) {
    start(command, engine);
    return;
  }
  client_ = std::make_unique<LoadClient>(running_server(command));
  fetch(*client_, "/metrics");  // fails here if no server answers
}

BenchServer::~BenchServer() = default;

// A socket of the file system rather than a port: ten thousand connections leave no ports behind
// that wait for their last packets.
void BenchServer::start(const BenchServeCommand& command, const EngineOptions& engine) {
  folder_.emplace();
  const ServeCommand serve = serve_command(command, engine);
  server::SluiceServerOptions options = server_options(serve);
  options.unix_path = folder_->socket();
  options.log = {};
  options.gate.keys.clear();  // the folder is this user's alone
  server_ = std::make_unique<server::SluiceServer>(std::move(options), false);
  service_ = load_service(engine, service_limits(serve), false,
                          [this](const LoadProgress& progress) { server_->set_loading(progress); });
  server_->serve(*service_);
  engine_clock_ = clock_of_engine(*service_);
  client_ = std::make_unique<LoadClient>(ServerAddress{.unix_path = folder_->socket()});
}

// The clock of a thread may be read by others of its process. The two numbers are not of the same
// instant; a step or two in thousands make no difference.
std::optional<EngineWork> BenchServer::engine_work() const {
  if (!service_) return {};
  timespec time{};
  clock_gettime(engine_clock_, &time);
  return EngineWork{
      .cpu_seconds = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec),
      .num_steps = service_->snapshot().stats.num_steps};
}

int32_t prompt_vocab_size(const BenchServeCommand& command) {
  if (command.is_running_server()) return kFirstIds;
  return summarize_model(command.engine.model).vocab_size;
}

}  // namespace sluice::cli
