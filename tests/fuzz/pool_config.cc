// A bucket pool alone (plan --pool-only), and the allocators on it. Pools are kept small:
// allocators may take long on large ones.
#include "runtime/plan/pool/pool_config.h"

#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto document =
      nlohmann::json::parse(data, data + size, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return 0;
  const fuzz::MemoryLimit limit(size);
  PoolConfig pool;
  if (!fuzz::Accepts({ErrorCode::kConfig}, [&] { pool = ParsePoolConfig(document); })) return 0;
  size_t buckets = 0;
  for (const PoolUnitKind& unit : pool.units) buckets += unit.buckets.size();
  if (pool.pattern.size() > 40 || buckets > 12) return 0;
  PoolFigures figures;
  if (!fuzz::Accepts({ErrorCode::kConfig}, [&] { figures = PlanPoolFigures(pool); })) return 0;
  const nlohmann::json json = PoolFiguresJson(figures);
  for (const auto& [name, bytes] : json.at("pool").items())
    FUZZ_REQUIRE(bytes.get<int64_t>() >= figures.lower_bound);
  FUZZ_REQUIRE(figures.lower_bound >= 0);
  return 0;
}
