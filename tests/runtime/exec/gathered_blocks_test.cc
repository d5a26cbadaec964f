// Every element of a state on every rank, once, however shards cut parameters, and pieces shards.
#include "runtime/exec/gathered_blocks.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/fnv.h"
#include "runtime/exec/logical_tensors.h"
#include "tests/support/engine_case.h"

namespace millrace::test {
namespace {

std::vector<float> ValuesOf(const ParamSpec& param) {
  std::vector<float> values(static_cast<size_t>(param.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i) + static_cast<float>(Fnv1a64(param.name) % 256) / 256;
  return values;
}

struct Gathered {
  std::map<std::string, std::vector<float>> values;  // NaN: none has come
  int64_t blocks = 0, twice = 0;
};
Gathered Gather(Engine& engine, int64_t piece_bytes) {
  Gathered gathered;
  for (const ParamPlacement& param : engine.layout().params)
    gathered.values[param.spec.name].resize(static_cast<size_t>(param.spec.numel()), NAN);
  GatheredBlocks(engine, piece_bytes).ForEach("master", [&](const ParamBlock& block) {
    std::vector<float>& of = gathered.values.at(engine.layout().param(block.param).spec.name);
    const auto* const values = block.values.as<const float>();
    ++gathered.blocks;
    for (int64_t line = 0; line < block.values.dim(0); ++line)
      for (int64_t i = 0; i < block.values.dim(1); ++i) {
        float& place = of.at(static_cast<size_t>(block.logical + line * block.stride + i));
        gathered.twice += !std::isnan(place);
        place = values[line * block.values.stride(0) + i];
      }
  });
  return gathered;
}

TEST_CASE("blocks have each element once, in its place", "[exec]") {
  PlanCase c;
  c.model = Divisible(TinyLlama(2));
  c.options.comm_scratch_bytes = 1 << 21;
  c.mesh = GENERATE(Mesh(1, 1), Mesh(1, 2), Mesh(2, 1), Mesh(1, 3), Mesh(2, 2), Mesh(1, 5),
                    Mesh(1, 1).With(Axis::kTensor, 2), Mesh(1, 3).With(Axis::kTensor, 2),
                    Mesh(2, 1).With(Axis::kTensor, 2), Mesh(1, 2).With(Axis::kExpert, 2));
  CAPTURE(ToString(c));
  RunEngines(c, {}, [&](Engine& engine, int rank) {
    WriteLogicalTensors(engine, "master", [](const ParamPlacement& p) { return ValuesOf(p.spec); });
    int64_t fewest = 0;
    for (const int64_t piece_bytes : {GatheredBlocks::kPieceBytes, int64_t{4000}, int64_t{1}}) {
      const Gathered gathered = Gather(engine, piece_bytes);
      const std::string where =
          std::to_string(rank) + " of pieces of " + std::to_string(piece_bytes) + " bytes: ";
      for (const ParamPlacement& param : engine.layout().params)
        MR_CHECK(gathered.values.at(param.spec.name) == ValuesOf(param.spec), "{}{}", where,
                 param.spec.name);
      MR_CHECK_EQ(gathered.twice, 0, "{}elements that came twice", where);
      if (fewest == 0) fewest = gathered.blocks;
      const bool cut = c.mesh.world() > c.mesh.Size(Axis::kReplicate) && piece_bytes == 1;
      MR_CHECK(cut ? gathered.blocks > fewest : gathered.blocks >= fewest, "{}{} blocks", where,
               gathered.blocks);
    }
  });
}

}  // namespace
}  // namespace millrace::test
