// What options must do to addresses, order and edges, in plans for GPUs as the bitwise matrix looks
// for it in those of the ranks at hand. Needs no GPU.
#include <catch2/catch.hpp>

#include "tests/system/options.h"

namespace millrace::test {
namespace {

TEST_CASE("in plans for GPUs, too, each option takes effect") {
  int looked_at = 0;
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const auto precision :
         {Precision::kFp32, Precision::kBf16All, Precision::kFp16, Precision::kFp16All})
      for (const int world : {2, 3})
        for (const int64_t accumulate : {1, 3})
          for (const Option& option : BitwiseOptions()) {
            Base base = MakeBase(family, true, precision, world, accumulate);
            option.set(base.trial);
            if (!option.trouble || !Valid(base.trial) || !option.applies(base.trial)) continue;
            Outcome planned;
            planned.run = Assemble(base.trial.config, world, {Backend::kCuda, 0}, {"train"});
            if (!OneBucketPerBlock(planned.run)) continue;
            INFO(base.name << ", " << option.name);
            CHECK(option.trouble(base.trial, planned) == "");
            ++looked_at;
          }
  CHECK(looked_at > 200);
}

}  // namespace
}  // namespace millrace::test
