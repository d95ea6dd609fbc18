// Timeline: what every stream ran and when, as a file for chrome://tracing or Perfetto.
//
// LlmEngine makes one when EngineOptions::timeline_path is set and hands it to the device.
// Thread rule: the engine's thread.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "device/trace.h"

namespace sluice {

class Timeline final : public TraceSink {
 public:
  // Errors: kIo when nothing can be written there: better now than after an hour.
  explicit Timeline(std::filesystem::path path);

  // Errors: kIo naming the path and the reason. Leaves nothing behind.
  static void require_writable(const std::filesystem::path& path);

  void take(const std::string& stream_name, std::vector<TraceSpan> spans) override;

  // Writes all spans taken so far, one row per stream; a later call writes the file anew.
  // Errors: kIo; an older file stays whole then.
  void write() const;

 private:
  std::filesystem::path path_;
  std::map<std::string, std::vector<TraceSpan>> streams_;
};

}  // namespace sluice
