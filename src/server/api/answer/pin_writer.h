// PinWriter: the events of POST /sluice/pins: the progress of the prefix, then what is held.
//
// Made by the route (app/pin_routes.cc). The page reads the same prompt_progress as in chats.
// Thread rule: as AnswerWriter.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/json_type.h"
#include "server/api/answer/answer_writer.h"
#include "sluice/pin_info.h"

namespace sluice::api {

// {name, num_tokens, num_blocks, bytes, places}; places in tokens.
nlohmann::ordered_json pin_json(const PinInfo& pin);

class PinWriter final : public AnswerWriter {
 public:
  // `find` gives the pin once it is there, from any thread; empty if it was not made. It may give
  // an older one of that name if the request was cancelled, and is not asked then.
  using Find = std::function<std::optional<PinInfo>()>;
  PinWriter(int64_t num_prompt_tokens, Find find)
      : num_prompt_tokens_(num_prompt_tokens), find_(std::move(find)) {}

  std::string body(const std::vector<AnswerDelta>& choices,
                   const std::optional<CachedPlaces>& places) const override;
  void write_start(std::string& out) override;
  void write_share(size_t prompt, const PromptShare& share, std::string& out) override;
  // Writes nothing: the token that the engine generated has no meaning, only its end has.
  void write_delta(const AnswerDelta& delta, std::string& out) override;
  void write_end(const std::optional<CachedPlaces>& places, std::string& out) override;
  void write_fault(const http::Fault& fault, std::string& out) override;
  void write_ping(std::string& out) override;
  std::optional<http::Fault> abort_fault() const override;

 private:
  int64_t num_prompt_tokens_;
  Find find_;
  bool is_cancelled_ = false;
};

}  // namespace sluice::api
