// The hooks for each backend.
#include "support/device_hooks.h"

#include <stdexcept>
#include <thread>

#include "device/cpu/cpu_stream.h"
#include "support/cuda/cuda_hooks.h"

namespace sluice::testing {

void enqueue_failure(Stream& stream, const char* message) {
  if (stream.device().kind() == DeviceKind::kCuda) return enqueue_cuda_failure(stream, message);
  as_cpu(stream).submit(kFailingOp, [message](ThreadTeam&) { throw std::runtime_error(message); });
}

void enqueue_gate(Stream& stream, const Gate& gate) {
  if (stream.device().kind() == DeviceKind::kCuda) return enqueue_cuda_gate(stream, gate);
  as_cpu(stream).submit("gate", [&gate](ThreadTeam&) {
    while (!gate.is_open()) std::this_thread::yield();
  });
}

std::unique_ptr<Device> make_device_if_present(std::string_view spec,
                                               const DeviceOptions& options) {
  try {
    return make_device(spec, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return nullptr;
  }
}

void upload(Stream& stream, const Buffer& to, const std::vector<std::byte>& from) {
  stream.copy({.dst = to.data(), .src = from.data(), .num_bytes = from.size()});
  stream.synchronize();
}

std::vector<std::byte> download(Stream& stream, const Buffer& from) {
  std::vector<std::byte> bytes(from.size_bytes());
  stream.copy({.dst = bytes.data(), .src = from.data(), .num_bytes = bytes.size()});
  stream.synchronize();
  return bytes;
}

}  // namespace sluice::testing
