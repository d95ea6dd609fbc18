// Cells and objects of sluice-lab speculative.
#include "lab/speculative/speculative_report.h"

#include <fmt/format.h>

#include "cli/bench/kv_run.h"
#include "cli/table.h"
#include "cli/units.h"
#include "io/json_type.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

using nlohmann::ordered_json;

// The rate of plain decode after the same context; there is such a row for each.
double plain_rate(const std::vector<SpeculativeGroup>& groups, int64_t context_tokens) {
  for (const SpeculativeGroup& group : groups) {
    const SpeculativeRow& row = group.rows.front();
    if (row.is_plain && row.context_tokens == context_tokens) return row.tokens_per_second.median;
  }
  return 0;
}

std::string drafts_cell(const SpeculativeRow& row) {
  if (row.is_plain) return "none";
  if (row.num_drafts) return std::to_string(*row.num_drafts);
  return fmt::format("auto, {:.1f}", row.counts.drafts_per_step());
}

// Forced, or the share of draft tokens that became text.
std::string acceptance_cell(const SpeculativeRow& row) {
  if (row.is_plain) return "-";
  if (row.forced) return fmt::format("{:.0f} %", 100 * *row.forced);
  if (row.counts.num_draft_tokens == 0) return "-";
  return fmt::format("{:.1f} %", 100 * static_cast<double>(row.counts.num_accepted) /
                                     static_cast<double>(row.counts.num_draft_tokens));
}

// Bytes of KV per second, as a share of one large copy.
double link_share(const SpeculativeRow& row, const LinkRates& link) {
  return row.counts.h2d_bytes / row.counts.seconds / link.to_device.median;
}

std::vector<std::string> cells_of(const SpeculativeRow& row, double plain, const LinkRates& link) {
  const StepTimes times = row.counts.times();
  const auto model = model_of(row);
  const auto number = [](double value) { return fmt::format("{:.2f}", value); };
  const bool drafts_by_passes = row.counts.draft_seconds > 0;
  return {format_tokens(row.context_tokens),
          drafts_cell(row),
          acceptance_cell(row),
          rate_cell(row.tokens_per_second),
          ratio_cell(row.tokens_per_second.median / plain),
          number(row.counts.tokens_per_step()),
          model ? number(model->tokens_per_step) : "-",
          format_seconds(times.verify_seconds),
          drafts_by_passes ? format_seconds(times.draft_seconds) : "-",
          model ? number(model->tokens_per_second) : "-",
          model ? percent_or_dash(row.tokens_per_second.median / model->tokens_per_second) : "-",
          row.counts.h2d_bytes > 0 ? percent_or_dash(link_share(row, link)) : "-"};
}

ordered_json model_json(const SpeculativeRow& row) {
  const auto model = model_of(row);
  if (!model) return nullptr;
  return {{"acceptance", model->acceptance},
          {"tokens_per_step", model->tokens_per_step},
          {"tokens_per_second", model->tokens_per_second},
          {"measured_of_predicted", row.tokens_per_second.median / model->tokens_per_second}};
}

ordered_json row_json(const SpeculativeRow& row, double plain, const LinkRates& link) {
  const StepTimes times = row.counts.times();
  ordered_json json = {{"context_tokens", row.context_tokens},
                       {"plain", row.is_plain},
                       {"num_speculative_tokens", nullptr},
                       {"forced_acceptance", number_or_null(row.forced)},
                       {"tokens_per_second", spread_json(row.tokens_per_second)},
                       {"speed_of_plain", row.tokens_per_second.median / plain},
                       {"steps", row.counts.num_steps},
                       {"tokens", row.counts.num_tokens},
                       {"draft_tokens", row.counts.num_draft_tokens},
                       {"accepted_tokens", row.counts.num_accepted},
                       {"tokens_per_step", row.counts.tokens_per_step()},
                       {"verify_seconds", times.verify_seconds},
                       {"draft_seconds", times.draft_seconds},
                       {"share_of_link", link_share(row, link)},
                       {"model", model_json(row)}};
  if (row.num_drafts) json["num_speculative_tokens"] = *row.num_drafts;
  return json;
}

}  // namespace

std::optional<SpeculativeModel> model_of(const SpeculativeRow& row) {
  if (row.is_plain) return {};
  const double num_drafts = row.num_drafts ? *row.num_drafts : row.counts.drafts_per_step();
  const double acceptance =
      row.forced ? *row.forced : fitted_acceptance(row.counts.tokens_per_step(), num_drafts);
  return SpeculativeModel{
      .acceptance = acceptance,
      .tokens_per_step = expected_tokens(acceptance, num_drafts),
      .tokens_per_second = predicted_rate(acceptance, num_drafts, row.counts.times())};
}

std::string speculative_table(const std::vector<SpeculativeGroup>& groups, const LinkRates& link) {
  Table table({"context", "drafts", "accepted", "tok/s", "of plain", "tokens a pass", "model",
               "T_verify", "t_draft", "model tok/s", "of model", "of link"});
  for (const SpeculativeGroup& group : groups) {
    for (const SpeculativeRow& row : group.rows) {
      table.add(cells_of(row, plain_rate(groups, row.context_tokens), link));
    }
  }
  return table.to_string();
}

ordered_json speculative_json(const std::vector<SpeculativeGroup>& groups, const LinkRates& link) {
  ordered_json results = ordered_json::array();
  for (const SpeculativeGroup& group : groups) {
    for (const SpeculativeRow& row : group.rows) {
      results.push_back(row_json(row, plain_rate(groups, row.context_tokens), link));
    }
  }
  return results;
}

}  // namespace sluice::lab
