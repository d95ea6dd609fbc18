// Order of destruction: the HTTP server first, since its threads run handlers; then the delivery,
// which gives the workers their last work; then the workers, which finish their calls; then what
// all use.
#include "server/app/sluice_server.h"

#include <filesystem>
#include <utility>

#include "core/error.h"
#include "io/hub_cache.h"
#include "server/app/routes.h"

namespace sluice::server {
namespace {

// Answers that are written when the engine has ended still have to reach their clients.
constexpr http::Milliseconds kTimeToWrite{2'000};

// The first is what answers carry.
std::vector<std::string> names_of(const SluiceServerOptions& options) {
  if (!options.model_names.empty()) return options.model_names;
  const std::filesystem::path path =
      std::filesystem::path(options.model_directory).lexically_normal();
  const std::string name = path.has_filename() ? path.filename() : path.parent_path().filename();
  std::error_code error;
  // A name of the Hugging Face cache counts as a whole, as in vLLM, and so does its last part.
  if (!std::filesystem::exists(path, error) && find_in_hub_cache(options.model_directory)) {
    if (name == options.model_directory) return {name};
    return {options.model_directory, name};
  }
  return {name.empty() ? options.model_directory : name};
}

bool is_local(const SluiceServerOptions& options) {
  return !options.unix_path.empty() || is_loopback(options.address);
}

Gate make_gate(const SluiceServerOptions& options, bool allow_unauthenticated) {
  GateOptions gate = options.gate;
  gate.is_local = is_local(options);
  // What is no address is refused by the HTTP server, in words that fit.
  if (!gate.is_local && is_ip_address(options.address) && gate.keys.empty() &&
      !allow_unauthenticated) {
    fail(ErrorCode::kInvalidArgument,
         "{} can be reached from other machines, and there is no key; give one by --api-key-file "
         "or SLUICE_API_KEY, or insist with --allow-unauthenticated",
         options.address);
  }
  return Gate(gate);
}

}  // namespace

class SluiceServer::Impl {
 public:
  Impl(SluiceServerOptions options, bool allow_unauthenticated)
      : options_(std::move(options)),
        gate_(make_gate(options_, allow_unauthenticated)),
        state_(names_of(options_)),
        context_{.state = state_,
                 .workers = workers_,
                 .delivery = delivery_,
                 .reasoning_field = options_.reasoning_field,
                 .version = options_.version,
                 .log = options_.log,
                 .num_lost_log_lines = options_.num_lost_log_lines,
                 .log_text = options_.log_text,
                 .has_page = options_.has_page},
        workers_(options_.num_workers),
        http_(http_options()) {}
  // Sinks of the service use the workers until each has its end.
  ~Impl() { drain(std::chrono::milliseconds(0)); }

  http::ServerOptions http_options() {
    http::ServerOptions http{.address = options_.address,
                             .port = options_.port,
                             .unix_path = options_.unix_path,
                             .num_threads = options_.num_http_threads,
                             .limits = options_.limits};
    add_routes(http.router, context_);
    if (!options_.gate.cors_origins.empty()) {
      add_preflight_routes(http.router, context_);
      http.answer_fields = [this](const http::Request& request) {
        return options_.gate.cors_origins.fields_for(request);
      };
    }
    http.gate = [this](const http::Request& request) { return gate_.check(request); };
    http.on_refusal = [this](const http::RefusedRequest& refused) {
      record_refusal(context_, refused);
    };
    return http;
  }

  void serve(EngineService& service) {
    state_.set_model(std::make_shared<ServedModel>(service, options_.model_directory,
                                                   options_.chat_template, options_.tool_format));
  }

  void drain(std::chrono::milliseconds limit) {
    state_.set_draining();
    if (const auto model = state_.model()) model->service.drain(limit);
    http_.stop(kTimeToWrite);
  }

  uint16_t port() const { return http_.port(); }
  size_t num_connections() const { return http_.num_connections(); }
  ServerState& state() { return state_; }

 private:
  const SluiceServerOptions options_;
  const Gate gate_;
  ServerState state_;
  ServerContext context_;
  // After everything that its tasks use: tasks of clients that have left still run, and log, while
  // the pool is destroyed.
  WorkerPool workers_;
  // Posts to the workers. After `drain` nothing is pushed any more: the service has ended all
  // requests, and every sink has its end.
  Delivery delivery_;
  http::HttpServer http_;
};

SluiceServer::SluiceServer(SluiceServerOptions options, bool allow_unauthenticated)
    : impl_(std::make_unique<Impl>(std::move(options), allow_unauthenticated)) {}

SluiceServer::~SluiceServer() = default;

uint16_t SluiceServer::port() const { return impl_->port(); }
size_t SluiceServer::num_connections() const { return impl_->num_connections(); }

void SluiceServer::set_loading(const LoadProgress& progress) {
  impl_->state().set_loading(progress);
}

void SluiceServer::serve(EngineService& service) { impl_->serve(service); }

const ServerState& SluiceServer::state() const { return impl_->state(); }

void SluiceServer::drain(std::chrono::milliseconds limit) { impl_->drain(limit); }

}  // namespace sluice::server
