#include "runtime/api/exact_sequences.h"

#include <cblas.h>
#include <fmt/core.h>

#include <set>
#include <variant>

#include "kernels/cpu/matmul/sequences_alike.h"
#include "runtime/config/load.h"
#include "runtime/plan/step_plan.h"

namespace millrace {
namespace {

// The training forward's products that plans with caches have rows of.
std::set<cpu::WholeProduct> ProductsOf(const RunPlans& plans) {
  std::set<cpu::WholeProduct> products;
  for (const StepPlan* plan : plans.All())
    for (const Body& body : plan->bodies)
      for (const PlanOp& op : body.ops) {
        const auto* product = std::get_if<MatmulOp<View>>(&op.op);
        if (product == nullptr || product->like_rows == 0) continue;
        const Layout &a = product->a.layout, &b = product->b.layout;
        const int64_t columns = product->like_columns > 0 ? product->like_columns : b.dims[1];
        products.insert({product->like_rows, columns, b.dims[0], a.dtype, b.dtype,
                         b.strides[0] == 1 && b.dims[1] > 1});
      }
  return products;
}

}  // namespace

std::string CheckSequencesAlike(const Config& config, const RunPlans& plans) {
  const int64_t sequences = config.train.micro_batch;
  for (const cpu::WholeProduct& product : ProductsOf(plans)) {
    const auto unlike = cpu::FirstUnlike(product, sequences, config.model.seq_len);
    if (!unlike) continue;
    const std::string text = fmt::format(
        "OpenBLAS's products for this processor (its core {}) give a sequence other bits in "
        "another place of a microbatch (train.micro_batch {}: position {} of sequence {}, in a "
        "product of {} rows with a weight [{}, {}]), and decode can have those of one place only; "
        "allowed are "
        "inference.exact=false, train.micro_batch=1, or other products: in the environment "
        "OPENBLAS_CORETYPE=Sandybridge has places alike, and with AVX-512 almost all have",
        openblas_get_corename(), sequences, unlike->position, unlike->sequence, product.rows,
        product.columns, product.depth);
    if (config.inference.exact)
      throw ConfigError("inference.exact is true, but " + text, PointerOfKey("inference.exact"));
    return "inference.exact is null, and what is generated need not have the bits of its scores: " +
           text;
  }
  return "";
}

}  // namespace millrace
