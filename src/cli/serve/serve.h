// What `sluice serve` makes its server and its service of, for commands that measure them.
//
// Used by serve.cc and bench/serve. Thread rule: main thread.
#pragma once

#include "cli/options/options.h"
#include "server/app/sluice_server.h"
#include "service/engine_service.h"

namespace sluice::cli {

// With the keys that the command's file and the environment have, and a log on standard error.
// Errors: kInvalidArgument for keys, the reasoning field and the parser of
// calls; those of summarize_model.
server::SluiceServerOptions server_options(const ServeCommand& command);

// Of its queue.
ServiceLimits service_limits(const ServeCommand& command);

}  // namespace sluice::cli
