// BenchServer: the server that `sluice bench serve` measures, and a client of it.
//
// Either a server of this process, made as `sluice serve` makes it, on a unix domain socket; or a
// running one that --url or --uds names. Used by streams.cc. Thread rule: main thread, but the
// client, which any thread may use.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/bench/serve/load_client.h"
#include "cli/options/options.h"
#include "server/app/sluice_server.h"
#include "service/engine_service.h"

namespace sluice::cli {

// Work of the engine's thread. Its processor time is without that of the device, whose kernels run
// on threads of their own, also on a CPU.
struct EngineWork {
  double cpu_seconds = 0;
  int64_t num_steps = 0;

  double seconds_per_step() const {
    return num_steps == 0 ? 0 : cpu_seconds / static_cast<double>(num_steps);
  }
};
EngineWork operator-(const EngineWork& after, const EngineWork& before);

// A folder of this user alone for the socket, removed with what is in it.
class SocketFolder {
 public:
  SocketFolder();
  ~SocketFolder();
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  std::string socket() const { return path_ + "/socket"; }

 private:
  std::string path_;
};

class BenchServer {
 public:
  // `engine` instead of the command's own. Loads the model, unless the server runs already.
  // The queue is unlimited and there is no log. Errors: those of `sluice serve`; kIo if a running
  // server does not answer.
  BenchServer(const BenchServeCommand& command, const EngineOptions& engine);
  ~BenchServer();

  LoadClient& client() { return *client_; }

  // Of a server of this process; null, or empty, for a running one. The service shows what a client
  // cannot see, such as steps.
  EngineService* service() { return service_.get(); }
  std::optional<EngineWork> engine_work() const;

 private:
  void start(const BenchServeCommand& command, const EngineOptions& engine);

  // In the order in which they are made: the service outlives the server, both the client.
  std::optional<SocketFolder> folder_;
  std::unique_ptr<EngineService> service_;
  std::unique_ptr<server::SluiceServer> server_;
  std::unique_ptr<LoadClient> client_;
  clockid_t engine_clock_{};  // of a server of this process
};

// Ids that prompts are drawn from: those of the model; of a running server, whose model is not
// known here, the first 256.
int32_t prompt_vocab_size(const BenchServeCommand& command);

}  // namespace sluice::cli
