// ConnectionSet: what the connections of one server share, and the list of them.
//
// Private to connection.cc and http_server.cc. It owns the io_context, and each connection owns it:
// an exchange that outlives the server can so never wake a connection without one.
// Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "server/http/http_server.h"

namespace sluice::http {

class Connection;

struct ConnectionSet {
  explicit ConnectionSet(ServerOptions server_options) : options(std::move(server_options)) {}

  const ServerOptions options;
  boost::asio::io_context io;

  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> open;

  std::vector<std::shared_ptr<Connection>> all() {
    const std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<Connection>> found;
    for (const auto& [key, weak] : open) {
      if (auto connection = weak.lock()) found.push_back(std::move(connection));
    }
    return found;
  }
};

}  // namespace sluice::http
