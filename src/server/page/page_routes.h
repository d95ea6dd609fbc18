// The page at /, and the routes that it reads the engine by.
//
// Thread rule: as server/app/routes.h.
#pragma once

#include "server/app/call.h"
#include "server/http/router.h"

namespace sluice::server {

// / and /ui/{}: without a key, compressed, and with a policy that keeps the browser from loading
// anything from elsewhere. 406 for clients that do not take gzip.
void add_page_routes(http::Router& router, ServerContext& context);

// /sluice/state, /sluice/timeline.
void add_watch_routes(http::Router& router, ServerContext& context);
// /sluice/events: a stream without end.
void add_event_routes(http::Router& router, ServerContext& context);

}  // namespace sluice::server
