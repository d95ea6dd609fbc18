// Timeline: records what every stream ran and when, and writes it for chrome://tracing or Perfetto.
//
// LlmEngine makes one if EngineOptions::timeline_path is set and gives it to the device. Memory
// grows with every op until the engine ends. Thread rule: the engine's thread.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "device/trace.h"

namespace sluice {

class Timeline final : public TraceSink {
 public:
  // Errors: kIo if the file cannot be written, at once instead of at the end of the run.
  explicit Timeline(std::filesystem::path path);

  // Tries to create the file; leaves nothing behind. Errors: kIo naming the path and the reason.
  static void require_writable(const std::filesystem::path& path);

  // Appends the spans of one stream. The device calls it when the host synchronizes with the
  // stream.
  void take(const std::string& stream_name, std::vector<TraceSpan> spans) override;

  // Writes all spans taken so far, one row per stream. A later call replaces the file.
  // Errors: kIo; an existing file then stays unchanged.
  void write() const;

 private:
  std::filesystem::path path_;
  std::map<std::string, std::vector<TraceSpan>> streams_;  // by stream name
};

}  // namespace sluice
