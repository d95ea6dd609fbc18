// Values of rows as JSON.
#include "server/api/answer/rendered_prompt.h"

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "io/json_type.h"

namespace sluice::api {
namespace {

using Json = nlohmann::ordered_json;

// All numbers of SamplingParams that are not whole are floats.
double shortest(double value) { return std::stod(fmt::format("{}", static_cast<float>(value))); }

Json value_json(const OptionValue& value) {
  return std::visit(
      [](const auto& held) -> Json {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, double>) {
          return shortest(held);
        } else if constexpr (std::is_same_v<T, std::map<int32_t, float>>) {
          Json biases = Json::object();
          for (const auto& [id, bias] : held) biases[std::to_string(id)] = shortest(bias);
          return biases;
        } else {
          return held;
        }
      },
      value);
}

}  // namespace

Json sampling_json(const SamplingParams& params) {
  Json json = Json::object();
  const auto add = [&](const OptionRow<SamplingParams>& row) {
    if (const auto value = row.get(params)) json[std::string(row.facts.name)] = value_json(*value);
  };
  for (const auto& row : kSamplingRows) add(row);
  add(kSkipSpecialRow);
  return json;
}

Json rendered_prompt(const std::string& request_id, const std::vector<int32_t>& ids,
                     const SamplingParams& params) {
  return {{"request_id", request_id},
          {"token_ids", ids},
          {"features", nullptr},
          {"sampling_params", sampling_json(params)}};
}

}  // namespace sluice::api
