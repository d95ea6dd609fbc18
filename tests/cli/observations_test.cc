// What the program says of audited rows: nothing that so few of them cannot say.
#include "cli/observations.h"

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "text/observations_json.h"

namespace sluice::cli {
namespace {

RequestOutput output_of(const MassObservations& layer) {
  RequestOutput output;
  output.captured_mass = {layer, layer};
  return output;
}

TEST(CapturedMass, OneRowHasNoSpread) {
  const RequestOutput output = output_of({.num_rows = 1, .captured = 0.5, .of_heads = {0.5}});
  const nlohmann::ordered_json json = request_mass_json(output);
  EXPECT_TRUE(json.at("standard_error").is_null()) << json;
  EXPECT_TRUE(json.at("layers").at(0).at("standard_error").is_null());
  EXPECT_EQ(request_mass_line(output),
            "captured 50.0 % of attention, measured in 1 row, too few for a range; least 50.0 % in "
            "layer 0");
}

TEST(CapturedMass, AFewRowsHaveNoRange) {
  const RequestOutput output = output_of({.num_rows = 7, .captured = 0.5, .standard_error = 0.02});
  EXPECT_EQ(request_mass_json(output).at("standard_error"), 0.02);
  EXPECT_TRUE(request_mass_json(output).at("range_95").is_null());
  EXPECT_NE(request_mass_line(output).find("in 7 rows, too few for a range"), std::string::npos);
}

TEST(CapturedMass, TenRowsHaveOne) {
  const RequestOutput output =
      output_of({.num_rows = 10, .captured = 0.5, .standard_error = 0.02, .of_heads = {0.5}});
  const nlohmann::ordered_json range = request_mass_json(output).at("range_95");
  EXPECT_NEAR(range.at(0), 0.4548, 1e-4);
  EXPECT_NEAR(range.at(1), 0.5452, 1e-4);
  EXPECT_NE(request_mass_line(output).find("in 10 rows (95 % range 45.5 to 54.5 %); least"),
            std::string::npos)
      << request_mass_line(output);
  Observations all;
  all.captured_mass = output.captured_mass;
  EXPECT_NE(observations_table(all).find("45.5 to 54.5 %"), std::string::npos)
      << observations_table(all);
}

}  // namespace
}  // namespace sluice::cli
