// The Newton-Schulz iteration of a step, matrix by matrix, against PyTorch's own function.
//
// A step on given matrices: they are what the momentum is set to, the gradient is clipped to
// nothing, and weights that were zero are afterwards minus the rate times the result. With momentum
// 1/2 what is made orthogonal is a quarter of the momentum, exactly.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"
#include "tests/runtime/run/golden_data.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

using test::Golden;
using test::Spread;
using test::Tensors;

constexpr double kRate = 0.25;

// "h.1.attn.qkv.weight": "attn.qkv"; "" of what is no matrix of a block.
std::string KindOf(const ParamPlacement& param) {
  if (param.spec.update != UpdateRule::kMuon) return "";
  const std::string& name = param.spec.name;
  const size_t begin = name.find('.', 2) + 1;
  return name.substr(begin, name.rfind('.') - begin);
}

// By parameter, what the matrices of `in` become.
Tensors Orthogonal(const Golden& golden, const Spread& spread, const std::string& precision,
                   const Tensors& all) {
  const std::vector<std::string> sets = {
      "precision.compute=" + precision, "optimizer.clip=1e-30",        "optimizer.lr=0.25",
      "optimizer.muon.momentum=0.5",    "optimizer.muon.lr=null",      "optimizer.weight_decay=0",
      "optimizer.muon.weight_decay=0",  "optimizer.muon.nesterov=true"};
  Tensors result;
  test::RunSessions(
      test::GoldenConfig(golden, spread, sets), spread.world(), {"train"}, [&](Session& session) {
        Engine& engine = session.engine();
        WriteLogicalTensors(engine, "muon_m", [&](const ParamPlacement& param) {
          const std::vector<double>& values = all.at("in." + KindOf(param));
          return std::vector<float>(values.begin(), values.end());
        });
        WriteLogicalTensors(engine, "master", [](const ParamPlacement& param) {
          // Norms stay, so that no gradient is infinite.
          const float value = param.spec.kind == ParamKind::kNorm ? 1 : 0;
          return std::vector<float>(static_cast<size_t>(param.spec.numel()), value);
        });
        const StepScalars scalars = test::StepOn(session, golden, spread, 0);
        Tensors mine;
        ForEachLogicalTensor(
            engine, "master", [&](const ParamPlacement& param, std::span<const float> values) {
              if (KindOf(param).empty()) return;
              const double rows = param.spec.fused.empty()
                                      ? static_cast<double>(param.spec.dims[0])
                                      : static_cast<double>(param.spec.fused[0]);
              const double adjust =
                  0.2 * std::sqrt(std::max(rows, static_cast<double>(param.spec.dims[1])));
              std::vector<double>& of = mine[param.spec.name];
              for (const float value : values) of.push_back(-double{value} / (kRate * adjust));
            });
        if (session.rank() == 0 && scalars.applied == 1) result = mine;
      });
  return result;
}

struct Apart {
  double largest = 0, rms = 0;
};

Apart Compare(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  Apart apart;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= apart.largest)) apart.largest = d;  // keeps a NaN
    apart.rms += d * d / static_cast<double>(a.size());
  }
  apart.rms = std::sqrt(apart.rms);
  return apart;
}

// In bf16 what is rounded, and when, is as PyTorch's: each of the three products of a step, with
// what is added to it. Only sums are in another order, which rounds other elements up: errors are
// as large, of most matrices' elements within 1.1 in the root mean square, of the fewest within
// 1.25. The largest of these is a smaller sample.
TEST_CASE("matrices become what PyTorch's Newton-Schulz makes of them, in f32 and in bf16",
          "[golden][muon]") {
  const Golden golden = Golden::WithMuon("llama_tied_tiny");
  const Tensors all = test::ReadTensors("tests/golden/muon/zeropower.safetensors", "");
  for (const Spread& spread :
       {Spread{.micro_batch = 3}, Spread{.shard = 2, .micro_batch = 3},
        Spread{.shard = 3, .micro_batch = 1}, Spread{.replicate = 2, .micro_batch = 3}}) {
    if (!test::HaveDevices(spread.world())) continue;
    CAPTURE(spread.Text());
    const Tensors single = Orthogonal(golden, spread, "fp32", all),
                  narrow = Orthogonal(golden, spread, "bf16", all);
    REQUIRE(single.size() == 8);
    REQUIRE(narrow.size() == 8);
    for (const auto& [name, found] : single) {
      CAPTURE(name);
      const size_t begin = name.find('.', 2) + 1;
      const std::string kind = name.substr(begin, name.rfind('.') - begin);
      const std::vector<double>& exact = all.at("out." + kind);
      CHECK(Compare(found, exact).largest <= 1e-5);
      const Apart ours = Compare(narrow.at(name), exact),
                  theirs = Compare(all.at("bf16." + kind), exact);
      CHECK(ours.rms <= 1.3 * theirs.rms);
      CHECK(ours.largest <= 2 * theirs.largest);
      CHECK(ours.rms >= 0.8 * theirs.rms);  // bf16 is at work
    }
  }
}

}  // namespace
}  // namespace millrace
