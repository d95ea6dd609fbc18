// LoadClient: many HTTP requests at once, each on a connection of its own, as a load on a server.
//
// One thread moves the bytes of all connections. It notes when each piece came and finds the ends
// of answers, and no more: texts and JSON are read after the measurement
// (completion.h). Used by `sluice bench serve`. Thread rule: any thread may call
// any member at any time; the destructor overlaps with no other call.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

using LoadClock = std::chrono::steady_clock;
using LoadTime = LoadClock::time_point;

// Negative if `to` is before `from`.
double seconds_between(LoadTime from, LoadTime to);

struct ServerAddress {
  std::string unix_path;  // not empty: this socket instead of address and port
  std::string address = "127.0.0.1";
  uint16_t port = 8000;
  std::string key;  // of the server; empty: none
};

// "http://127.0.0.1:8000"; an address, since names would have to be looked up, and "localhost".
// Errors: kInvalidArgument for everything else.
ServerAddress parse_server_url(std::string_view url);

// An answer as it came from the socket, head included.
struct ReceivedAnswer {
  struct Piece {
    LoadTime time;
    size_t end;  // of `bytes`, with this piece
  };
  LoadTime sent;  // when the request was given to the client, before it connected
  std::string bytes;
  std::vector<Piece> pieces;
  bool is_whole = false;  // to the end that its head announces
  std::string fault;      // why the connection ended before; empty if this side closed it
};

class LoadConnection;

// One request. A handle: copies mean the same request.
class LoadRequest {
 public:
  explicit LoadRequest(std::shared_ptr<LoadConnection> connection);

  // Waits for the end of the answer or of the connection. Errors: Interrupted on Ctrl-C.
  void wait() const;
  // A copy of what has come so far. Cost: linear in the answer, and the client's thread waits for
  // it if it reads this answer meanwhile.
  ReceivedAnswer received() const;

 private:
  std::shared_ptr<LoadConnection> connection_;
};

class LoadClient {
 public:
  explicit LoadClient(const ServerAddress& address);
  // Closes all connections.
  ~LoadClient();
  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;

  // Each opens a connection and closes it when the answer is whole; no connection serves two
  // requests. Return at once; what goes wrong is in ReceivedAnswer::fault.
  LoadRequest get(std::string_view path);
  LoadRequest post(std::string_view path, std::string_view json);

  // Processor time of the client's thread so far.
  double cpu_seconds() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::cli
